//! Lines over a logarithmic axis, as an SVG that can be read on a light and on a dark page.

use std::fmt::Write as _;

use super::report::number;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 690.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 456.0;

/// Colours that are told apart on white and on near black.
const COLOURS: [&str; 9] =
    ["#d1495b", "#2f7ed8", "#e08a1e", "#2a9d5c", "#8e5bd0", "#1a9aa8", "#c24fa8", "#9a7b4f", "#808890"];

const STYLE: &str = "text{font:14px system-ui,sans-serif;fill:#24292f}.small{font-size:12px}\
                     .page{fill:#fff}.grid{stroke:#d8dee4}.axis{stroke:#57606a}\
                     @media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}\
                     .grid{stroke:#30363d}.axis{stroke:#8b949e}}";

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// Whether it is one of those that the chart is about.
    pub prominent: bool,
    /// Where it goes, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A chart of lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the vertical one.
    pub y: String,
    /// The lines, in the order of the legend.
    pub lines: Vec<Line>,
}

impl Chart {
    /// The whole picture.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let mut ticks: Vec<f64> = points().map(|(x, _)| *x).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let highest = points().map(|(_, y)| *y).fold(1.0, f64::max);
        let step = nice_step(highest);
        let top = (highest / step).ceil() * step;
        let (first, last) = (ticks.first().copied().unwrap_or(1.0), ticks.last().copied().unwrap_or(1.0));
        let span = (last / first).ln().max(f64::MIN_POSITIVE);
        let at_x = |x: f64| LEFT + (x / first).ln() / span * (RIGHT - LEFT);
        let at_y = |y: f64| BOTTOM - y / top * (BOTTOM - TOP);

        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
             <text x=\"{LEFT}\" y=\"30\" font-weight=\"bold\">{title}</text>\n",
            title = escaped(&self.title)
        );
        for n in 0..=(top / step).round() as u32 {
            let value = f64::from(n) * step;
            let y = at_y(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                number(value.round()).trim_end_matches(".00").trim_end_matches(".0")
            );
        }
        for x in &ticks {
            let _ = writeln!(
                svg,
                "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{BOTTOM}\" y2=\"{1}\"/>\
                 <text class=\"small\" x=\"{0:.1}\" y=\"{2}\" text-anchor=\"middle\">{x:.0}</text>",
                at_x(*x),
                BOTTOM + 6.0,
                BOTTOM + 22.0
            );
        }
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\"/>\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            BOTTOM + 46.0,
            escaped(&self.x),
            f64::midpoint(TOP, BOTTOM),
            escaped(&self.y)
        );
        for (n, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let (width, dashes) = if line.prominent { (3.5, "") } else { (1.8, " stroke-dasharray=\"6 3\"") };
            let path: Vec<String> =
                line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes} points=\"{}\"/>",
                path.join(" ")
            );
            for (x, y) in &line.points {
                let _ = write!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{width}\" fill=\"{colour}\"/>",
                    at_x(*x),
                    at_y(*y)
                );
            }
            let y = TOP + 12.0 + 26.0 * n as f64;
            let _ = writeln!(
                svg,
                "\n<line x1=\"{0}\" x2=\"{1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
                 stroke-width=\"{width}\"{dashes}/><text x=\"{2}\" y=\"{3}\">{4}</text>",
                RIGHT + 24.0,
                RIGHT + 54.0,
                RIGHT + 62.0,
                y + 5.0,
                escaped(&line.name)
            );
        }
        svg + "</svg>\n"
    }
}

/// A distance between lines of the grid, so that there are between four and ten.
fn nice_step(highest: f64) -> f64 {
    let magnitude = 10_f64.powf((highest / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * magnitude)
        .find(|step| highest / step <= 8.0)
        .unwrap_or(10.0 * magnitude)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let line = |name: &str, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            prominent: false,
            points: points.to_vec(),
        };
        Chart {
            title: "A & B".to_owned(),
            x: "writers".to_owned(),
            y: "transactions/s".to_owned(),
            lines: vec![
                line("A", &[(1.0, 500.0), (8.0, 4_000.0), (64.0, 2_000.0)]),
                line("B", &[(1.0, 0.0)]),
            ],
        }
    }

    #[test]
    fn powers_of_the_same_number_are_as_far_apart() {
        let svg = chart().to_svg();
        let middle = f64::midpoint(LEFT, RIGHT);
        // The highest value is on the highest line of the grid, half of it in the middle.
        let points = format!("{LEFT:.1},406.0 {middle:.1},{TOP:.1} {RIGHT:.1},256.0");
        assert!(svg.contains(&points), "{points} in {svg}");
    }

    #[test]
    fn each_line_is_in_the_legend_and_text_is_escaped() {
        let svg = chart().to_svg();
        assert!(svg.contains(">A</text>") && svg.contains(">B</text>"), "{svg}");
        assert!(svg.contains("A &amp; B") && !svg.contains("A & B"), "{svg}");
    }

    #[test]
    fn grids_have_round_steps() {
        assert_eq!(
            [3.0, 700.0, 4_000.0, 6_400.0, 9_900.0].map(nice_step),
            [0.5, 100.0, 500.0, 1_000.0, 2_000.0]
        );
    }

    #[test]
    fn a_chart_without_lines_is_a_chart() {
        let svg = Chart { lines: Vec::new(), ..chart() }.to_svg();
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
