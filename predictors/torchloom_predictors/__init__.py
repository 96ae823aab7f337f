"""The predictors of torchLoom, one per module, loaded like any third-party plugin."""
