"""Convert data sets and user tables to trace bundles; one module per source."""

from torchloom_core.lab.trace.importers.backblaze import import_backblaze
from torchloom_core.lab.trace.importers.csv_trace import import_csv
from torchloom_core.lab.trace.importers.infinitehbd import import_infinitehbd

__all__ = ["import_backblaze", "import_csv", "import_infinitehbd"]
