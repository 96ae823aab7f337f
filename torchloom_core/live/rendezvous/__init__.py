"""Forms the generations of a program that is split over workers."""
