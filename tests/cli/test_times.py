"""Dates and times on the command line."""

import pytest
from cyclopts import App

from torchloom_core.cli.times import Duration, Moment
from torchloom_core.floor.errors import ConfigError


def moment(text, kind=Moment):
    app = App(result_action="return_value")

    @app.default
    def command(*, until: kind):
        return until

    return app(["--until", text], exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2015", "2015-01-01 00:00:00"),
        ("2015-09", "2015-09-01 00:00:00"),
        ("2015-09-08", "2015-09-08 00:00:00"),
        ("20150908", "2015-09-08 00:00:00"),
        ("2015-09-08T06:30", "2015-09-08 06:30:00"),
        ("30d", "30 days, 0:00:00"),
        ("1.5h", "1:30:00"),
        ("2015s", "0:33:35"),
    ],
)
def test_a_date_may_be_a_day_a_month_a_year_or_a_time_since_the_start(text, meant):
    assert str(moment(text)) == meant


@pytest.mark.parametrize("text", ["60", "201509", "2015-13", "2015-9", "15-09", "2015-", "May", ""])
def test_an_invalid_date_is_refused_with_examples(text):
    with pytest.raises(ConfigError) as refused:
        moment(text)
    assert str(refused.value) == (
        "--until: need a date such as 2024-06-30, 2024-06 or 2024, or a time since "
        f"the start of the trace such as 30d, was {text!r}"
    )


@pytest.mark.parametrize("text", ["0s", "-1d", "20000d", "2x", "1h soon", ""])
def test_an_invalid_duration_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=r"need a duration such as 30s, .* at most 11574d, was"):
        moment(text, Duration)
