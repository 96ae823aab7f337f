"""What policies and predictors see and propose; authors import it from the module ``plugin``."""
