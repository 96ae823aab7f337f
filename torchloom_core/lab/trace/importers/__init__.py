"""Convert data sets and user tables to trace bundles; one module per source."""

from torchloom_core.lab.trace.importers.backblaze import import_backblaze
from torchloom_core.lab.trace.importers.csv_trace import import_csv
from torchloom_core.lab.trace.importers.infinitehbd import import_infinitehbd
from torchloom_core.lab.trace.importers.kernel_log import import_kernel_log
from torchloom_core.lab.trace.importers.kubernetes import import_kubernetes
from torchloom_core.lab.trace.importers.slurm import import_slurm

__all__ = [
    "import_backblaze",
    "import_csv",
    "import_infinitehbd",
    "import_kernel_log",
    "import_kubernetes",
    "import_slurm",
]
