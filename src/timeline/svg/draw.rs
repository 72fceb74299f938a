//! Pure side: writes SVG elements.

use std::fmt::Write as _;

/// Rules of every picture: the fonts, the paper, its title and the line below.
const RULES: &str = r#"text { font-family: Inter, "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", sans-serif }
text { fill: #1f2933; font-size: 11px }
.paper { fill: #ffffff }
.title { font-size: 21px; font-weight: 600 }
.facts { font-size: 12.5px; fill: #52606d }
"#;

/// What one kind of picture looks like.
pub(crate) struct Look {
    /// Rules of CSS, besides those of every picture.
    pub(crate) rules: &'static str,
    /// Patterns that the rules fill with.
    pub(crate) defs: &'static str,
}

/// Elements in the order in which they are painted.
#[derive(Default)]
pub(crate) struct Elements {
    body: String,
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Area {
    pub(crate) fn middle(self) -> (f64, f64) {
        (self.x + self.width / 2.0, self.y + self.height / 2.0)
    }
}

impl Elements {
    /// A rectangle; `radius` rounds its corners, `hint` is what a browser shows on pointing at it.
    pub(crate) fn rect(&mut self, class: &str, area: Area, radius: f64, hint: &str) {
        let Area { x, y, width, height } = area;
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{}" y="{}" width="{}" height="{}""#,
            num(x),
            num(y),
            num(width),
            num(height)
        );
        if radius > 0.0 {
            let _ = write!(self.body, r#" rx="{}""#, num(radius));
        }
        self.close("rect", hint);
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64), hint: &str) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{}" y1="{}" x2="{}" y2="{}""#,
            num(from.0),
            num(from.1),
            num(to.0),
            num(to.1)
        );
        self.close("line", hint);
    }

    /// A line through points; its class says whether what is below it is filled.
    pub(crate) fn polyline(&mut self, class: &str, points: &[(f64, f64)], hint: &str) {
        let points: Vec<String> =
            points.iter().map(|&(x, y)| format!("{},{}", num(x), num(y))).collect();
        let _ = write!(self.body, r#"<polyline class="{class}" points="{}""#, points.join(" "));
        self.close("polyline", hint);
    }

    pub(crate) fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64) {
        let (x, y, radius) = (num(x), num(y), num(radius));
        let _ = writeln!(self.body, r#"<circle class="{class}" cx="{x}" cy="{y}" r="{radius}"/>"#);
    }

    /// Text whose baseline begins, or is centred, or ends at a point, as its class says.
    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let (x, y, text) = (num(x), num(y), escape(text));
        let _ = writeln!(self.body, r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#);
    }

    /// The same, read from bottom to top.
    pub(crate) fn text_upwards(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let (x, y, text) = (num(x), num(y), escape(text));
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" transform="translate({x} {y}) rotate(-90)">{text}</text>"#
        );
    }

    /// Paints other elements over these.
    pub(crate) fn append(&mut self, other: &Self) {
        self.body.push_str(&other.body);
    }

    fn close(&mut self, element: &str, hint: &str) {
        if hint.is_empty() {
            self.body.push_str("/>\n");
        } else {
            let _ = writeln!(self.body, "><title>{}</title></{element}>", escape(hint));
        }
    }

    /// The whole document.
    pub(crate) fn document(self, title: &str, (width, height): (f64, f64), look: &Look) -> String {
        let (width, height, title) = (num(width), num(height), escape(title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{title}</title>\n\
             <style>\n{RULES}{}</style>\n{}{}</svg>\n",
            look.rules, look.defs, self.body
        )
    }
}

/// A coordinate to a tenth of a pixel.
fn num(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").map_or(text.clone(), str::to_owned);
    if text == "-0" { "0".to_owned() } else { text }
}

/// Text that cannot end an element or an attribute. Control characters are not allowed in XML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// Width that a text takes at most in a usual sans-serif font of that size.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    let ems = text.chars().map(|letter| match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | '\'' | '|' => 0.36,
        'f' | 't' | 'r' | '-' | ' ' | '/' => 0.44,
        'm' | 'w' | 'M' | 'W' => 0.95,
        'A'..='Z' => 0.72,
        _ => 0.63,
    });
    ems.sum::<f64>() * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out() {
        assert_eq!(escape("a<b>&\"\u{1}"), "a&lt;b&gt;&amp;&quot;\u{fffd}");
    }

    #[test]
    fn coordinates_are_short() {
        for (value, text) in [(1.0, "1"), (1.04, "1"), (1.25, "1.2"), (-0.01, "0"), (10.0, "10")] {
            assert_eq!(num(value), text);
        }
    }
}
