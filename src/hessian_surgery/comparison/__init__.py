"""Every method on one front: repeated splits, equal accuracy, error bars, and the advice drawn from them."""
