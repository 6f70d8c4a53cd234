"""Cells with the names of their columns."""

from __future__ import annotations

from docs_site.tables import with_column_names, with_columns_marked


def test_each_cell_has_its_columns_name_as_text():
    html = (
        '<p><td></p><table><tr><th><code>a</code> &amp; "b"</th><th style="text-align: right"></th></tr>'
        '<tr><td>1</td><td style="text-align: right">2</td></tr><tr><td>3</td><td>4</td></tr></table>'
    )
    named = '<td data-column="a &amp; &quot;b&quot;">'
    expected = html.replace("<td>1", f"{named}1").replace("<td>3", f"{named}3")
    assert with_column_names(html) == expected


def test_table_without_headings_stays():
    assert with_column_names("<table><tr><td>1</td></tr></table>") == "<table><tr><td>1</td></tr></table>"


def test_text_in_columns_is_marked_and_commands_are_not():
    text = '<div class="highlight"><pre><code>node   pods\nw1     2</code></pre></div>'
    command = '<div class="language-sh highlight"><pre><code>k8s-rdma   top\nmore</code></pre></div>'
    marked = text.replace('"highlight"', '"highlight columns" style="--columns: 11"')
    assert with_columns_marked(text + command) == marked + command


def test_lines_that_hold_sentences_are_not_marked():
    text = f'<div class="highlight"><pre><code>a   b\nc   {"word " * 30}</code></pre></div>'
    assert with_columns_marked(text) == text
