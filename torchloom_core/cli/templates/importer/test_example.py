from torchloom_example import import_example

from torchloom_core.testing import ImporterContract


class TestContract(ImporterContract):
    importer = import_example

    def write_source(self, folder):
        source = folder / "faults.csv"
        source.write_text("time_s,node,fault\n1767225600,n1,gpu\n1767229200,n2,nic\n")
        return source
