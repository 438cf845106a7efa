"""All methods on one front: repeated splits, equal accuracy, error bars, and advice from them."""
