"""`onnxbolt report`: a written report as a page, and two of them compared."""

from __future__ import annotations

from pathlib import Path

import click

from onnxbolt.cli_base import FILE, Group, emit, show


class _WithDefault(Group):
    """A group whose arguments are those of its command `page`, unless they begin with another
    command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["page", *args]
        return super().resolve_command(ctx, args)


@click.group(
    "report", cls=_WithDefault, subcommand_metavar="REPORT.json OUT.html | COMMAND [ARGS]..."
)
def report_commands() -> None:
    """Show a report of `optimize` as a page, or compare two.

    `onnxbolt report REPORT.json OUT.html` writes the page that `optimize --report OUT.html` writes.
    """


@report_commands.command("page")
@click.argument("source", metavar="REPORT.json", type=FILE)
@click.argument("out", metavar="OUT.html", type=FILE)
def report_page(source: Path, out: Path, quiet: bool) -> None:
    """Write a report as one HTML file that needs no network."""
    from onnxbolt.files import write_whole
    from onnxbolt.report.page import page
    from onnxbolt.report.reading import read

    if out.suffix != ".html":
        raise click.UsageError(f"{out}: name a file that ends in .html.")
    if out.is_dir() or not out.parent.is_dir():
        raise click.UsageError(f"{out}: not the path of a file in an existing directory.")
    write_whole(out, page(read(source)))
    if not quiet:
        show(out)


@report_commands.command("diff")
@click.argument("before", metavar="A.json", type=FILE)
@click.argument("after", metavar="B.json", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown instead of tables.")
def report_diff(before: Path, after: Path, as_json: bool, as_markdown: bool, quiet: bool) -> None:
    """Compare two reports: nodes, choices, times and errors."""
    from onnxbolt.report.diff import difference
    from onnxbolt.report.reading import read

    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other.")
    found = difference(read(before), read(after))
    if not quiet:
        text = found.json if as_json else found.markdown if as_markdown else found.text
        emit("difference", text, found.json)
