"""Output files, each complete or not there at all."""

import io
import os
import pathlib
import tempfile

from matplotlib.backends.backend_pdf import PdfPages

from dfa.report.draw import figure_of

_NO_DATE = {"CreationDate": None}  # the same input gives the same bytes


def write_atomically(path, data):
    """Writes bytes beside `path` and renames; an older file survives a full disk."""
    path = pathlib.Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_figures(charts, folder):
    """NAME.png for each chart, figures.pdf with all, three_panel.pdf. Returns the file names."""
    names, pages = [], io.BytesIO()
    with PdfPages(pages, metadata=_NO_DATE) as book:
        for chart in charts:
            figure = figure_of(chart)
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
            write_atomically(folder / f"{chart.name}.png", image.getvalue())
            names.append(f"{chart.name}.png")
            book.savefig(figure)
            if chart.name == "three_panel":
                page = io.BytesIO()
                figure.savefig(page, format="pdf", metadata=_NO_DATE)
                write_atomically(folder / "three_panel.pdf", page.getvalue())
                names.append("three_panel.pdf")
    write_atomically(folder / "figures.pdf", pages.getvalue())
    return names + ["figures.pdf"]
