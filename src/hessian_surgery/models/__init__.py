"""Networks with torchvision's parameter names, small nets, and checkpoints."""
