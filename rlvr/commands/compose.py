"""Composes YAML groups and shell overrides with Hydra, and turns what can go wrong there into user errors.

Every value override is forced in (`key=value` and `+key=value` become Hydra's `++key=value`), so that unknown keys
and wrong values meet one check: the typed options, which name the key, the value and the mend.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr import recipes
from rlvr.config import TrainConfig
from rlvr.errors import ConfigError, RlvrError

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.override_parser.types import Override

RECIPES = Path(recipes.__file__).parent


@dataclass(frozen=True)
class YamlSource:
    """Which YAML files are composed."""

    primary: str = "train"
    """File without `.yaml` whose defaults list is the start."""
    options: type = TrainConfig
    """Dataclass whose defaults fill in what no file sets, so that interpolations may refer to them."""
    config_dir: Path | None = None
    """A user's folder of further choices, laid out as `recipes/`."""
    config_path: Path | None = None
    """A run's folder: its `config.yaml` takes the place of `primary` and of all groups."""

    @property
    def folders(self) -> list[Path]:
        """All that Hydra searches, in its order."""
        return [*([self.config_path] if self.config_path else []), *self._choice_folders]

    @property
    def _choice_folders(self) -> list[Path]:
        return [RECIPES, *([self.config_dir] if self.config_dir else [])]

    def check(self) -> None:
        """Refuses folders that are not there, and a user's file that has the name of one of ours.

        Raises:
            ConfigError: naming flag and folder.
        """
        if self.config_path and not (self.config_path / "config.yaml").is_file():
            raise ConfigError("--config-path", str(self.config_path), "this is no run's folder: it has no config.yaml")
        if not self.config_dir:
            return
        if not self.config_dir.is_dir():
            raise ConfigError("--config-dir", str(self.config_dir), "there is no such folder")
        for file in self.config_dir.glob("*/*.yaml"):
            twin = file.relative_to(self.config_dir)
            if (RECIPES / twin).exists():
                raise ConfigError("--config-dir", str(self.config_dir), f"rlvr has its own {twin}; rename yours")

    def groups(self) -> list[str]:
        """Names of the config groups."""
        return sorted({file.parent.name for folder in self._choice_folders for file in folder.glob("*/*.yaml")})

    def choices(self, group: str) -> dict[str, Path]:
        """Name of each choice of a group -> its file."""
        files = [file for folder in self._choice_folders for file in (folder / group).glob("*.yaml")]
        return {file.stem: file for file in sorted(files)}


@dataclass(frozen=True)
class Composed:
    """One composed configuration."""

    values: dict[str, Any]
    """Nested values, interpolations resolved, defaults filled in."""
    origins: dict[str, str]
    """Dotted key of each value that is no default -> the file, or `command line`."""


def compose(overrides: list[str], source: YamlSource) -> Composed:
    """Composes one run's values; they are not validated yet.

    Raises:
        ConfigError: an override that cannot be read, or a group or choice that does not exist.
    """
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    source.check()
    parsed = parse(overrides)
    for override in parsed:
        if override.is_sweep_override():
            _, _, value = str(override.input_line).partition("=")
            raise ConfigError(override.key_or_group, value, f"add -m to sweep over it; a list is written [{value}]")
        _check_choice(override, source)
    lines = [normalised(override, source) for override in parsed]
    with session(source) as (hydra, primary, search):
        try:
            config = hydra_compose(primary, [*lines, search], return_hydra_config=True)
            choices = dict(config.hydra.runtime.choices)
            OmegaConf.set_struct(config, False)
            del config["hydra"]
            origins = _origins(hydra, primary, [*lines, search], source)
            for key, value in flat(OmegaConf.to_container(config)).items():
                if value == "???":
                    raise ConfigError(key, value, f"a value has to be given: {key}=...")
            if choices.get("recipe") and "name" not in config:
                config["name"], origins["name"] = choices["recipe"], "name of the recipe"
            merged = OmegaConf.merge(_defaults(source), config)
            values = OmegaConf.to_container(merged, resolve=True)
        except HydraException as error:
            raise _as_user_error(error, source) from error
        except YAMLError as error:
            raise RlvrError(f"a YAML file cannot be read: {_first_line(error)}") from error
        except OmegaConfBaseException as error:
            raise ConfigError(str(error.full_key), error.value, _first_line(error)) from error
    assert isinstance(values, dict)
    if "recipe" in values:
        raise ConfigError("recipe", choices.get("recipe"), "its file must begin with the line `# @package _global_`")
    _check_verifiers(parsed, origins)
    for override in parsed:
        if override.key_or_group not in source.groups() and not override.is_delete():
            origins |= dict.fromkeys(flat({override.key_or_group: override.value()}), "command line")
    return Composed(values, origins)  # type: ignore[arg-type]


def parse(overrides: list[str]) -> list[Override]:
    """Reads overrides.

    Raises:
        ConfigError: not of the form `key=value`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed = OverridesParser.create(), []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            key, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(key, None, "an override is written key=value") from error
            mend = f"""cannot be read; quote a value with special characters: '{key}="..."'"""
            raise ConfigError(key, value, mend) from error
        key, package = parsed[-1].key_or_group, parsed[-1].package
        if not is_hydras(key) and (not key or "/" in key or package is not None):
            mend = "an override is written group=choice or a.b.key=value"
            raise ConfigError(text.partition("=")[0], text.partition("=")[2], mend)
    return parsed


def is_hydras(key: str) -> bool:
    """Whether the key is Hydra's own (`hydra/launcher`, `hydra.sweep.dir`)."""
    return key.startswith(("hydra.", "hydra/"))


def normalised(override: Override, source: YamlSource) -> str:
    """The override as Hydra is to get it: a group's choice plain, a value forced in."""
    key, text = override.key_or_group, override.input_line
    assert text is not None
    if override.is_delete() or is_hydras(key):
        return text
    plain = text.lstrip("+")
    return plain if key in source.groups() and not source.config_path else f"++{plain}"


@contextmanager
def session(source: YamlSource) -> Iterator[tuple[Hydra, str, str]]:
    """Hydra set up on the source's folders: yields (Hydra, name of the primary file, the search path's override)."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    first, *others = source.folders
    search = f"hydra.searchpath=[{','.join(quoted(f'file://{folder.resolve()}') for folder in others)}]"
    with initialize_config_dir(str(first.resolve()), job_name="rlvr", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        yield hydra, "config" if source.config_path else source.primary, search


def quoted(text: object) -> str:
    """A value that Hydra's grammar reads as this very text."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(str(text), Quote.single).with_quotes()


def spelled_out(text: str, groups: Collection[str], source: YamlSource) -> str:
    """`data=PATH` means `data.path=PATH` where PATH is no choice of the group, for those of `groups`."""
    group, _, value = text.partition("=")
    if group not in groups or value in source.choices(group):
        return text
    is_path = any(mark in value for mark in "/:.~") or Path(value).exists()
    return f"{group}.path={quoted(value)}" if is_path else text


def verifiers_as_list(overrides: Iterable[str], source: YamlSource) -> list[str]:
    """`verifier=math` means the list of one."""
    known = source.choices("verifier")
    return [
        f"verifier=[{text.partition('=')[2]}]"
        if text.startswith("verifier=") and text.partition("=")[2] in known
        else text
        for text in overrides
    ]


def _defaults(source: YamlSource) -> dict[str, Any]:
    """Values of the options' dataclass; the verifiers are chosen by their group alone."""
    values = asdict(source.options())
    values.pop("verifier", None)
    return values


def _check_choice(override: Override, source: YamlSource) -> None:
    group, chosen = override.key_or_group, override.value()
    if group not in source.groups() or override.is_delete():
        return
    if source.config_path:
        raise ConfigError(group, chosen, "no group can be chosen again over a run's config.yaml; give single keys")
    known = source.choices(group)
    for name in chosen if isinstance(chosen, list) else [chosen]:
        if str(name) not in known:
            raise ConfigError(group, name, f"there is no such choice; {nearest(str(name), list(known))}")


def _check_verifiers(overrides: list[Override], origins: Mapping[str, str]) -> None:
    """An option chooses no verifier: refuses `verifier.overlong.weight=2` where the files name none of that name."""
    chosen = list(dict.fromkeys(key.split(".")[1] for key in origins if key.startswith("verifier.")))
    for override in overrides:
        group, _, name = override.key_or_group.partition(".")
        name = name.partition(".")[0]
        if group == "verifier" and name and name not in chosen and not override.is_delete():
            mend = f"the run has no verifier {name}; choose it as well: verifier=[{','.join([*chosen, name])}]"
            raise ConfigError(override.key_or_group, override.value(), mend)


def nearest(name: str, known: list[str]) -> str:
    """`did you mean ...?`, or the list of what there is."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"


def _as_user_error(error: Exception, source: YamlSource) -> RlvrError:
    missing = re.match(r"You must specify '(\w+)'", str(error))
    if missing:
        group = missing[1]
        return ConfigError(group, None, f"choose one: {', '.join(source.choices(group))}")
    return RlvrError(f"the configuration does not compose: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split())


def _origins(hydra: Hydra, primary: str, lines: list[str], source: YamlSource) -> dict[str, str]:
    """Dotted key -> the last file of the defaults list that sets it."""
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    origins: dict[str, str] = {}
    for default in hydra.config_loader.compute_defaults_list(primary, lines, RunMode.RUN).defaults:
        path = f"{default.config_path}.yaml"
        file = next((folder / path for folder in source.folders if (folder / path).is_file()), None)
        if file is None:
            continue  # Hydra's own
        content = OmegaConf.to_container(OmegaConf.load(file))
        if not isinstance(content, dict):
            raise RlvrError(f"{file}: its content must be a mapping of keys to values")
        content.pop("defaults", None)
        for part in reversed((default.package or "").split(".")):
            content = {part: content} if part else content
        origins |= dict.fromkeys(flat(content), path)
    return origins


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, for everything that is no non-empty mapping."""
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        leaves |= flat(value, f"{key}.") if isinstance(value, Mapping) and value else {key: value}
    return leaves


def flow(value: Any) -> str:
    """The value as YAML on one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()
