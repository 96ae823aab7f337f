"""One layer or expert with its optimizer and scheduler, which moves between workers as a whole."""
