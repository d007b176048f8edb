"""Commands from functions: their annotations say what click reads from the command line. Layer 6.

A parameter is annotated with an `Argument` or an `Option`, whose help text stands next to it:

    bootstrap: Annotated[str, Option(metavar="HOST:PORT", help="The broker.")] = "127.0.0.1:9092"
"""

import enum
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., object])

Exit: Final = click.exceptions.Exit
"""Raised by a command to end with a status."""

EXIT_INTERRUPTED: Final = 130
"""The status that a shell reports for a process that SIGINT ended."""

_TYPES: Final[dict[type, click.ParamType[Any]]] = {
    str: click.STRING,
    int: click.INT,
    Path: click.Path(path_type=Path),
}


class Argument(NamedTuple):
    """What a parameter is that is given by its place.

    Args:
        help: what it is, as a sentence.
        metavar: how help calls it; the name of the parameter if left.
    """

    help: str
    metavar: str | None = None


class Option:
    """What a parameter is that is given by its name.

    Args:
        flags: such as `--key`, `-k`; from the parameter's name if left.
        metavar: how help calls the value; its type if left.
        help: what it does, as a sentence.
        envvar: an environment variable that has the value if the option is not given.
        min: the least number that is allowed.
        choices: the texts that are allowed; any if left.
    """

    def __init__(
        self,
        *flags: str,
        metavar: str | None = None,
        help: str,  # noqa: A002 (as click)
        envvar: str | None = None,
        min: int | None = None,  # noqa: A002 (as click)
        choices: Iterable[str] = (),
    ) -> None:
        self.flags = flags
        self.metavar = metavar
        self.help = help
        self.envvar = envvar
        self.min = min
        self.choices = tuple(choices)


class Command(NamedTuple):
    """A function as a command; its docstring is the help text."""

    function: Callable[..., object]
    epilog: str | None = None


class _LazyGroup(click.Group):
    """Makes a command when it is asked for, and lists all in the order in which they were added."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.makers: dict[str, Callable[[], click.Command]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.makers)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.makers and cmd_name not in self.commands:
            self.add_command(self.makers[cmd_name](), cmd_name)
        return super().get_command(ctx, cmd_name)


class Group:
    """Commands under one name.

    Args:
        help: what they are for.
        name: of the program and of its distribution, for the outermost; it has `--version`.
        epilog: examples.
    """

    def __init__(
        self,
        *,
        help: str,  # noqa: A002 (as click)
        name: str | None = None,
        epilog: str | None = None,
    ) -> None:
        # The commands in it inherit the names.
        self._group = _LazyGroup(
            name,
            help=help,
            epilog=epilog,
            no_args_is_help=True,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        if name is not None:
            option = click.version_option(
                package_name=name, message="%(prog)s %(version)s", help="Print the version."
            )
            option(self._group)

    def command(self, name: str, *, epilog: str | None = None) -> Callable[[Function], Function]:
        """Decorate a function to be the command of a name."""

        def add(function: Function) -> Function:
            self._group.makers[name] = lambda: _make(Command(function, epilog))
            return function

        return add

    def later(self, name: str, module: str, attribute: str) -> None:
        """Add the `Command` or `Group` that is an attribute of a module.

        The module is imported when that name, or the list of all, is asked for.
        """
        self._group.makers[name] = lambda: _make(
            getattr(importlib.import_module(module), attribute)
        )

    def completion_script(self, shell: str) -> str:
        """Return what a shell must read so that it completes the commands and their options.

        Args:
            shell: bash, zsh or fish.
        """
        # Which other commands do not need.
        from click.shell_completion import get_completion_class

        name = self._group.name
        assert name is not None
        make = get_completion_class(shell)
        assert make is not None
        return make(self._group, {}, name, f"_{name.upper()}_COMPLETE").source()

    def run(self) -> NoReturn:
        """Run the command that the process's arguments name.

        Raises:
            SystemExit: always at the end, if nothing else was raised.
        """
        self._group.main(prog_name=self._group.name)
        raise AssertionError("click ends the process")


def _make(made: Command | Group) -> click.Command:
    if isinstance(made, Group):
        return made._group
    declared = inspect.signature(made.function).parameters.values()
    return click.Command(
        None,
        callback=_ends_quietly(made.function),
        params=[_parameter(each) for each in declared],
        help=inspect.getdoc(made.function),
        epilog=made.epilog,
    )


def _ends_quietly(function: Callable[..., object]) -> Callable[..., object]:
    """Make Ctrl-C end a command without a message."""

    def run(**values: Any) -> object:
        try:
            return function(**values)
        except KeyboardInterrupt:
            raise Exit(EXIT_INTERRUPTED) from None

    return run


def _parameter(declared: inspect.Parameter) -> click.Parameter:
    annotation, option = _split(declared.annotation)
    is_list = typing.get_origin(annotation) is list
    is_pair = typing.get_origin(annotation) is tuple
    kind: type = typing.get_args(annotation)[0] if is_list else annotation
    if is_pair:  # of texts
        kind = tuple
    default = None if declared.default is declared.empty else declared.default
    common: dict[str, Any] = {"help": option.help, "callback": _reader(kind, is_list)}
    if isinstance(default, enum.Enum):
        default = default.value
    if default is not None:
        common["default"] = default
    if isinstance(option, Argument):
        is_required = declared.default is declared.empty
        name = option.metavar
        if name is not None:  # else click shows the choices
            name = (name if is_required else f"[{name}]") + ("..." if is_list else "")
        if default is not None:
            common["help"] += f"  [default: {default}]"
        return click.Argument(
            [declared.name],
            required=is_required,
            nargs=-1 if is_list else 1,
            metavar=name,
            type=_type(kind, None),
            **common,
        )
    flags = option.flags or (f"--{declared.name.strip('_').replace('_', '-')}",)
    if kind is bool:
        return click.Option([declared.name, *flags], is_flag=True, **common)
    return click.Option(
        [declared.name, *flags],
        required=declared.default is declared.empty,
        metavar=option.metavar,
        envvar=option.envvar,
        show_envvar=True,
        show_default=True,
        multiple=is_list,
        nargs=2 if kind is tuple else 1,
        type=click.Choice(option.choices) if option.choices else _type(kind, option.min),
        **common,
    )


def _split(annotation: Any) -> tuple[Any, Argument | Option]:
    """The type of a parameter, without None, and its declaration."""
    assert typing.get_origin(annotation) is Annotated, f"{annotation} has no declaration"
    annotated, option = typing.get_args(annotation)
    if isinstance(annotated, types.UnionType):
        (annotated,) = (each for each in typing.get_args(annotated) if each is not type(None))
    return annotated, option


def _type(kind: type, least: int | None) -> click.ParamType[Any]:
    if kind is tuple:
        return click.STRING
    if issubclass(kind, enum.Enum):
        return click.Choice([each.value for each in kind])
    return _TYPES[kind] if least is None else click.IntRange(min=least)


def _reader(kind: type, is_list: bool) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """What turns a value of click's into one of the annotated type."""

    def read(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if value is None or not (is_list or issubclass(kind, enum.Enum)):
            return value
        if not is_list:
            return kind(value)
        return [kind(each) for each in value] or None

    return read
