"""What can be done to a run, one folder each, found by entry points as anyone's are.

The folder of a capability holds its action (``__init__``), how the kernel carries it out
(``kind``), how the fleet model does (``answer``) and its command line (``command``).
"""
