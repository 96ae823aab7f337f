"""torchLoom's controller: messages, kernel, arbiter, bus, broker, Weaver and command line.

Importing this package loads nothing else, because every trainer imports
:mod:`torchloom_core.wire.messages`. Plugin authors import :mod:`torchloom_core.plugin`.
"""

__version__ = "0.1.0"
