//! The frame of a page: head, style for light and dark, tables, and the escaping of all text that
//! comes from outside. Pure.

/// `text` as it may stand between tags and in attributes.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Neither HTML nor SVG may hold control characters.
            control if control.is_control() && control != '\n' && control != '\t' => {
                safe.push('\u{fffd}');
            }
            other => safe.push(other),
        }
    }
    safe
}

/// A whole document. `title` is text; `style` is added to the common one; `body` is markup.
pub fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n\
         <style>\n{STYLE}{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title),
    )
}

/// A table whose cells are text. Columns whose name begins with `>` hold figures: they stand
/// right. A narrow window scrolls it sideways.
pub fn table(caption: &str, columns: &[&str], rows: &[Vec<String>]) -> String {
    let figures = |at: usize| columns.get(at).is_some_and(|name| name.starts_with('>'));
    let class = |at| if figures(at) { " class=\"n\"" } else { "" };
    let mut html = String::from("<div class=\"scroll\"><table>\n");
    if !caption.is_empty() {
        html.push_str(&format!("<caption>{}</caption>\n", escaped(caption)));
    }
    html.push_str("<thead><tr>");
    for (at, name) in columns.iter().enumerate() {
        let name = escaped(name.trim_start_matches('>'));
        html.push_str(&format!("<th scope=\"col\"{}>{name}</th>", class(at)));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let cell = if cell.is_empty() { "\u{2013}" } else { cell };
            html.push_str(&format!("<td{}>{}</td>", class(at), escaped(cell)));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

/// Sentences that the reader must not miss; nothing if there are none.
pub fn warnings<'a>(sentences: impl IntoIterator<Item = &'a str>) -> String {
    let items: String = sentences
        .into_iter()
        .map(|sentence| format!("<li>{}</li>\n", escaped(sentence)))
        .collect();
    if items.is_empty() {
        return items;
    }
    format!(
        "<div class=\"warning\" role=\"note\"><strong>Warnings</strong>\n<ul>\n{items}</ul></div>\n"
    )
}

/// The colours are told apart by people with any colour vision, on both papers; lines differ in
/// dashes and marks in shape as well (see `chart`).
pub const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--dim:#57616b;--line:#d5dae0;--grid:#e9ecef;--mark:#fff3c4;--warn:#b35900;
--c0:#0067a3;--c1:#c44e00;--c2:#007a57;--c3:#a3457f;--c4:#8a6d00;--c5:#2f86b8;--c6:#5b4bb5;--c7:#4c5a68}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#15181c;--dim:#9aa4af;--line:#3a424b;--grid:#272d34;--mark:#4a4320;--warn:#ffb454;
--c0:#5fb4ee;--c1:#ff8f4f;--c2:#35c99b;--c3:#e597c6;--c4:#e2b93b;--c5:#9ad5ff;--c6:#a99cf5;--c7:#a5b1bd}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;max-width:1200px;padding:0 1rem}
h1{font-size:1.5rem}
h2{font-size:1.2rem;margin-top:2.5rem;padding-top:1rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin-bottom:.3rem}
.scroll{overflow-x:auto}
.note{color:var(--dim);font-size:.9rem}
svg{display:block;max-width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
figure{margin:1rem 0}
table{border-collapse:collapse;margin:1rem 0;font-size:.9rem}
caption{text-align:left;color:var(--dim);padding:.2rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600}
th.n,td.n{text-align:right;padding:.3rem 0 .3rem 1rem}
td.n{white-space:nowrap;font-variant-numeric:tabular-nums}
.warning{border-left:4px solid var(--warn);padding:.3rem 1rem;margin:1rem 0;background:var(--grid)}
.warning ul{margin:.3rem 0;padding-left:1.2rem}
summary{cursor:pointer;color:var(--dim)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:0 2rem}
";

/// What a page is built from, found again in it: tests of pages.
#[cfg(test)]
pub(in crate::lab) mod checks {
    /// Every element that is opened is closed, in order; nothing is fetched from outside.
    pub(in crate::lab) fn assert_well_formed(html: &str) {
        const VOID: [&str; 2] = ["meta", "br"];
        let mut open: Vec<&str> = Vec::new();
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            rest = &rest[at + 1..];
            if rest.starts_with('!') {
                continue;
            }
            let end = rest.find('>').expect("a tag ends");
            let tag = &rest[..end];
            let name = |tag: &str| tag.find([' ', '/', '\n']).unwrap_or(tag.len());
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(
                    open.pop(),
                    Some(closed),
                    "near {}",
                    &rest[..rest.len().min(80)]
                );
            } else if !tag.ends_with('/') && !VOID.contains(&&tag[..name(tag)]) {
                open.push(&tag[..name(tag)]);
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            rest = &rest[end..];
        }
        assert!(open.is_empty(), "{open:?} stay open");
        for outside in ["http:", "https:", " src=", "@import", "NaN", "inf"] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_text_leaves_its_element_or_attribute(text in any::<String>()) {
            let safe = escaped(&text);
            prop_assert!(!safe.contains(['<', '>', '"', '\'']));
            let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
            let ampersands = safe.matches('&').count();
            let entities: usize = known.iter().map(|one| safe.matches(one).count()).sum();
            prop_assert_eq!(ampersands, entities);
        }

        #[test]
        fn a_table_of_any_text_is_well_formed(cells in prop::collection::vec("[<>&\"'a-z/]{0,12}", 4)) {
            let rows = vec![cells[..2].to_vec(), cells[2..].to_vec()];
            checks::assert_well_formed(&table(&cells[0], &["name", ">value"], &rows));
        }
    }

    #[test]
    fn a_document_escapes_its_title_and_figures_stand_right() {
        let body = table(
            "",
            &["name", ">value"],
            &[vec!["a".to_owned(), String::new()]],
        );
        let html = document("a <b>", ".x{color:red}\n", &body);
        checks::assert_well_formed(&html);
        assert!(html.contains("<title>a &lt;b&gt;</title>"));
        assert!(html.contains("<td>a</td><td class=\"n\">\u{2013}</td>"));
        assert!(html.contains(".x{color:red}"));
    }

    #[test]
    fn without_warnings_there_is_no_box() {
        assert_eq!(warnings([]), "");
        assert!(warnings(["1 < 2"]).contains("<li>1 &lt; 2</li>"));
    }
}
