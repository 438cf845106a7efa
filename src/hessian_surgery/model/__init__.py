"""The model: a classifier, its weights as one vector, its evaluation, head and loss."""
