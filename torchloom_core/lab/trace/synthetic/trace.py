"""Write a synthetic trace bundle."""

from pathlib import Path

import msgspec

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.writer import BundleWriter, refuse_to_replace
from torchloom_core.lab.trace.synthetic.faults import draw_faults
from torchloom_core.lab.trace.synthetic.fleet import components, job_rows
from torchloom_core.lab.trace.synthetic.parameters import START_NS, Parameters
from torchloom_core.lab.trace.synthetic.telemetry import LOAD_DEPENDENT, tables


def synthesize(out: Path, parameters: Parameters, *, force: bool = False) -> None:
    """Write the bundle ``out``; the same parameters give the same bytes.

    Raises
    ------
    TraceError
        If ``out`` exists and ``force`` is not set, or there are more racks than nodes.
    """
    refuse_to_replace(out, force=force)
    if parameters.racks > parameters.nodes:
        raise TraceError(
            f"{out}: need racks <= nodes, was {parameters.racks} racks, {parameters.nodes} nodes"
        )
    faults = draw_faults(parameters)
    with BundleWriter(
        out,
        name=out.stem,
        start_ns=START_NS,
        end_ns=parameters.end_ns,
        source="torchloom trace synthesize",
        licence="Apache-2.0",
        synthetic=True,
        load_dependent=LOAD_DEPENDENT if parameters.interval_s else (),
        notes=msgspec.json.encode(parameters).decode(),
        force=force,
    ) as writer:
        for row in (*components(parameters), *job_rows(parameters), *faults.events):
            writer.add(row)
        for table in tables(parameters, faults):
            writer.telemetry(table)
