"""The Weaver's metrics for Prometheus; needs the extra ``metrics``."""
