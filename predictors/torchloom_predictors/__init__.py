"""The predictors that come with torchLoom, one a file; each is a plugin like anyone's."""
