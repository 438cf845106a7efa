"""The model: a classifier, its weights as one vector, how it is evaluated, its head and its loss."""
