import re
from typing import get_args

import msgspec
import pytest

from torchloom_core.cli.init_command import init, template_text
from torchloom_core.config.evaluation import Allreduce, AllreduceMode
from torchloom_core.config.loading import parse
from torchloom_core.config.monitoring import Metrics, Tracing
from torchloom_core.config.schema import ActionRule, Config, PolicySwitch
from torchloom_core.config.services import Lighthouse
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import discover


def tables(cls: type[msgspec.Struct], name: str = "") -> dict[str, list[str]]:
    """Every table of the config and its plain keys."""
    found: dict[str, list[str]] = {name: []}
    for field in msgspec.structs.fields(cls):
        dotted = f"{name}.{field.name}".lstrip(".")
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found |= tables(field.type, dotted)
        elif "dict" not in str(field.type) and "None" not in str(field.type):
            found[name].append(field.name)
    return {table: keys for table, keys in found.items() if keys}


def section(header: str) -> str:
    """The lines from a table's header to the next one's."""
    _, found, rest = template_text().partition(f"[{header}]\n")
    assert found, header
    return re.split(r"^(?:# )?\[", rest, maxsplit=1, flags=re.M)[0]


def uncommented(table: str) -> str:
    """Return a table of the template that is commented out, as if it was not."""
    _, _, rest = template_text().partition(f"# [{table}]\n")
    lines = rest.partition("\n\n")[0].splitlines()
    return "\n".join([f"[{table}]", *(line.removeprefix("# ") for line in lines)])


@pytest.mark.parametrize(
    ("name", "cls"), [("lighthouse", Lighthouse), ("metrics", Metrics), ("tracing", Tracing)]
)
def test_a_table_that_starts_something_is_shown_with_its_defaults_and_right_once_uncommented(
    name, cls
):
    assert getattr(parse(uncommented(name)), name) == cls()
    shown = section(name).splitlines()
    for field in msgspec.structs.fields(cls):
        at = next(i for i, line in enumerate(shown) if line.startswith(f"# {field.name} = "))
        assert shown[at - 1].startswith("# # "), field.name


def test_the_allreduce_of_a_backtest_is_shown_and_right_once_uncommented():
    shown = uncommented("evaluate.allreduce")
    job = parse(shown).evaluate.allreduce
    assert [*job.modes] == ["none", "int8"]
    for cls in (Allreduce, AllreduceMode):
        for field in msgspec.structs.fields(cls):
            assert re.search(rf"(?m)^\[?[\w.]*\b{field.name}\b.*[=\]]", shown), field.name
            required = field.default is msgspec.NODEFAULT or field.name == "steps"
            in_modes = cls is AllreduceMode
            assert required or in_modes or getattr(job, field.name) == field.default


def test_the_template_is_the_defaults_with_some_plugins_switched_on():
    config = parse(template_text())
    assert msgspec.structs.replace(config, policies={}, predictors={}) == Config()
    assert config.policies
    assert config.predictors


@pytest.mark.parametrize(("table", "keys"), tables(Config).items())
def test_every_key_stands_in_the_template_after_a_comment(table, keys):
    lines = section(table).splitlines()
    for key in keys:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
        assert lines[at - 1].startswith("# "), f"{table}.{key} has no comment"


def test_the_rails_of_one_kind_of_action_are_shown_and_right_once_uncommented():
    shown = section("arbiter.actions.migrate")
    for field in msgspec.structs.fields(ActionRule):
        assert re.search(rf"^# {field.name} = .* # ", shown, flags=re.M), field.name
    rule = parse(uncommented("arbiter.actions.migrate")).arbiter.actions["migrate"]
    assert rule.cooldown_s == 600
    assert rule.approval is ActionRule().approval


def test_every_mode_is_named():
    for mode in get_args(msgspec.structs.fields(PolicySwitch)[0].type):
        assert f'"{mode}"' in template_text()


def test_plugins_of_the_template_are_shipped_and_shown_with_their_defaults():
    config = parse(template_text())
    active = activate(config, discover(), "torchloom.toml")
    assert not active.failed
    assert active.policies
    assert active.predictors
    classes = {info.name: info.cls for info in discover()}
    for name, shown in (*config.policies.items(), *config.predictors.items()):
        options = classes[name].Options()
        for key, value in shown.items():
            if key == "mode":
                continue
            assert value == getattr(options, key), f"{name}.{key}"


def test_policies_that_act_on_forecasts_are_shadow_by_default():
    assert parse(template_text()).policies["failure_forecast"]["mode"] == "shadow"


def test_the_rule_that_is_shown_is_right_once_uncommented():
    header = "[[policies.thresholds.rules]]\n"
    shown = template_text().partition(f"# {header}")[2].partition("\n\n")[0]
    text = header + "\n".join(line[2:] for line in shown.splitlines() if "= " in line[:14])
    (rule,) = activate(parse(text), discover(), "torchloom.toml").policies
    assert {need.metric for need in rule.policy.needs} == {"gpu_temp_celsius"}


def test_an_existing_file_is_overwritten_only_by_force(tmp_path):
    path = tmp_path / "torchloom.toml"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="--force"):
        init(path)
    assert path.read_text() == "mine"
    init(path, force=True)
    assert parse(path.read_text()).policies


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path):
    path = tmp_path / "absent" / "torchloom.toml"
    with pytest.raises(StateError, match=f"^{path}: cannot be written: No such file"):
        init(path)
