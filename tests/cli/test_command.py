"""The grammar: words, options, overrides, and what is said of anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from witbench.cli.command import JSON, Command, Option, read_file
from witbench.errors import ConfigError


def command(**changes: object) -> Command:
    settings: dict[str, object] = {"options": (JSON, Option("weights", read_file, "FILE", "a file"))}
    return Command("try", "Tries.", "PATH", lambda arguments: 0, **(settings | {"words": (0, 1)} | changes))  # type: ignore[arg-type]


def test_options_come_before_and_after_words_and_have_defaults() -> None:
    parsed = command().parse(["json=true", "run/cert"])
    assert parsed.words == ("run/cert",)
    assert parsed.options == {"json": True, "weights": None}
    assert command().parse(["run/cert", "json=true"]) == parsed


def test_a_path_with_an_equals_sign_is_a_word() -> None:
    assert command().parse(["./p=0.1/cert"]).words == ("./p=0.1/cert",)
    assert command().parse(["runs/p=0.1"]).words == ("runs/p=0.1",)


def test_dash_is_a_word() -> None:
    assert command().parse(["-"]).words == ("-",)


@pytest.mark.parametrize("text", ["model=gpt_3m", "protocol.p=0.5", "+attack.params.n=1", "++seed=3", "~seed", "a=x=y"])
def test_overrides_pass_through_where_they_are_taken(text: str) -> None:
    assert command(composes=True).parse([text]).overrides == (text,)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["jsn=true"], "option=jsn: unknown; choose from json, weights; did you mean json?"),
        (["model=gpt_3m"], "option=model: unknown; choose from json, weights"),
        (["json=yes"], "json=yes: must be true or false"),
        (["weights=/no/such"], "weights=/no/such: must be a file that exists"),
        (["--verbose"], "--verbose: unknown flag; options are key=value, the flags are --help"),
        (["a", "b"], "b: unexpected; usage: witbench try PATH"),
    ],
)
def test_anything_else_is_answered_with_what_there_is(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        command().parse(arguments)
    assert says in str(caught.value)


def test_missing_words_and_options_of_a_command_without_any() -> None:
    with pytest.raises(ConfigError, match="something is missing; usage: witbench try PATH"):
        command(words=(1, 1)).parse([])
    with pytest.raises(ConfigError, match="json: try takes no options"):
        command(options=()).parse(["json=true"])


def test_a_file_option_gives_a_path(tmp_path: Path) -> None:
    file = tmp_path / "w"
    file.touch()
    assert command().parse([f"weights={file}"]).options["weights"] == file
