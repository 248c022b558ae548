"""A self-contained HTML page: plots, tables, style and script are embedded."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from fedraa.report.tables import Cell, Table
from fedraa.report.theme import Picture, Theme
from fedraa.rundir.atomic_files import escape_bytes

Images = Mapping[str, Mapping[Theme, bytes]]


@dataclass(frozen=True)
class Section:
    """A section of the page. The tables in `folded` are hidden until the reader clicks on their titles."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    commands: Sequence[str] = ()
    folded: Sequence[Table] = ()
    paragraphs: Sequence[str] = ()


def render_page(title: str, text: str, sections: Sequence[Section], images: Images, themes: Sequence[Theme]) -> str:
    """Return the HTML of the page.

    Args:
        title: The title.
        text: The line below the title.
        sections: The sections.
        images: Every picture as SVG, by name and theme.
        themes: One theme, or a light and a dark theme.
    """
    links = "".join(
        f'<a href="#{_section_anchor(i)}">{escape(section.title)}</a>' for i, section in enumerate(sections)
    )
    body = "".join(_render_section(i, section, images) for i, section in enumerate(sections))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="{" ".join(theme.name for theme in themes)}">\n'
        f"<style>\n{_colour_rules(themes)}{_read_asset('page.css')}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><p class="quiet">{escape(text)}</p><nav>{links}</nav></header>\n'
        f"<main>\n{body}</main>\n<script>\n{_read_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _read_asset(name: str) -> str:
    return files("fedraa.report").joinpath(name).read_text(encoding="utf-8")


def _colour_rules(themes: Sequence[Theme]) -> str:
    """Return the CSS of the themes. The second theme is for dark screens."""
    rules = [
        f":root {{ --ink: {theme.ink}; --faint: {theme.faint}; --grid: {theme.grid}; --paper: {theme.paper}; "
        f"--link: {theme.palette[0]}; }}"
        for theme in themes
    ]
    return rules[0] + "\n" + "".join(f"@media (prefers-color-scheme: dark) {{ {rule} }}\n" for rule in rules[1:])


def _section_anchor(i: int) -> str:
    return f"section-{i}"


def _render_section(i: int, section: Section, images: Images) -> str:
    parts = [f'<section id="{_section_anchor(i)}"><h2>{escape(section.title)}</h2>\n']
    if section.text:
        parts.append(f'<p class="quiet">{escape(section.text)}</p>\n')
    parts += [f"<p>{escape(paragraph)}</p>\n" for paragraph in section.paragraphs]
    parts += [_render_table(table, f"<h3>{escape(table.title)}</h3>") for table in section.tables]
    if section.pictures:
        figures = "".join(_render_figure(picture, images[picture.name]) for picture in section.pictures)
        parts.append(f'<div class="figures">{figures}</div>\n')
    parts += [f"<pre>{escape(command)}</pre>\n" for command in section.commands]
    for table in section.folded:
        parts.append(f"<details><summary>{escape(table.title)}</summary>{_render_table(table, '')}</details>")
    return "".join([*parts, "</section>\n"])


def _render_figure(picture: Picture, images: Mapping[Theme, bytes]) -> str:
    first, *dark = [_data_url("image/svg+xml", image) for image in images.values()]
    sources = "".join(f'<source media="(prefers-color-scheme: dark)" srcset="{image}">' for image in dark)
    return (
        f'<figure><picture>{sources}<img alt="{escape(picture.title)}" src="{first}"></picture>'
        f"<figcaption><b>{escape(picture.title)}.</b> {escape(picture.caption)}</figcaption></figure>\n"
    )


def _render_table(table: Table, heading: str) -> str:
    numeric = table.numeric_columns()
    kinds = [' class="number"' * is_numeric for is_numeric in numeric]
    head = "".join(
        f'<th scope="col"{kind}><button type="button">{escape(column)}</button></th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    rows = "".join("<tr>" + "".join(map(_render_cell, row, kinds, table.columns)) + "</tr>\n" for row in table.rows)
    links = " · ".join(
        f'<a download="{table.name}.{ending}" href="{_data_url(kind, text)}">{label}</a>'
        for ending, kind, label, text in (
            ("csv", "text/csv", "CSV", table.csv),
            ("tex", "application/x-tex", "LaTeX", table.latex),
        )
    )
    kind = "numbers" if any(numeric) else "settings"
    return (
        f'{heading}<p class="quiet">{escape(table.note)} <span class="files">{links}</span></p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
    )


def _render_cell(cell: Cell, kind: str, column: str) -> str:
    # Only NaN is unequal to itself. It has no place in the order of the rows.
    value = "" if cell.value is None or cell.value != cell.value else str(cell.value)
    text = escape(cell.text)
    if isinstance(cell.value, str):
        # The browser may start a new line after a point or an underscore of a long name.
        text = text.replace(".", ".<wbr>").replace("_", "_<wbr>")
    else:
        # A number stays on one line with its unit. Its interval may move to the next line.
        text = text.replace(" ", "\u00a0").replace("\u00a0[", " [")
    return f'<td{kind} data-column="{escape(column)}" data-value="{escape(value)}">{text}</td>'


def _data_url(kind: str, content: str | bytes) -> str:
    if isinstance(content, str):
        content = escape_bytes(content).encode()
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
