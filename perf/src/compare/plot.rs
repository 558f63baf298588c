//! The comparison as a picture: the medians above, the differences below.
//!
//! Colours are three of the Okabe-Ito palette, which people with any colour vision can tell apart;
//! the marks differ in shape as well.

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, Cross, PathElement, TriangleMarker};
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::{BLACK, Color, RGBColor, WHITE};
use thiserror::Error;

use super::report::{Comparison, Row};
use super::statistics::{SLOWER_RATIO, Spread};
use crate::modes::{MODES, label};
use crate::table::Build;

/// Size of the picture.
const SIZE: (u32, u32) = (960, 900);
/// Height of its upper part.
const UPPER: u32 = 540;
/// Colours in the order of the modes: blue, orange, green.
const COLOURS: [RGBColor; 3] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
];
/// Colour of the limits.
const GREY: RGBColor = RGBColor(110, 110, 110);
/// Type face of all words.
const FACE: &str = "sans-serif";
/// How far the modes stand apart along the axis of sizes, so that their spreads do not hide each
/// other.
const APART: f64 = 0.07;

/// Why there is no picture.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct PlotError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> PlotError {
        PlotError(error.to_string())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws the comparison as SVG.
///
/// # Errors
///
/// [`PlotError`]: the sizes and times cannot be drawn.
pub fn svg(comparison: &Comparison) -> Result<String, PlotError> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (upper, lower) = root.split_vertically(UPPER);
        times(&upper, comparison)?;
        differences(&lower, comparison)?;
        root.present()?;
    }
    Ok(text)
}

/// The upper part: medians with their quartiles, and the bounce.
fn times(area: &Area<'_>, comparison: &Comparison) -> Result<(), PlotError> {
    let rows = &comparison.rows;
    let highest = rows.iter().flat_map(Row::modes).map(|spread| spread.p75);
    let top = highest.fold(0.0, f64::max) * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Latency by message size: by reference, messages inline, all inline",
            (FACE, 21),
        )
        .margin_left(14)
        .margin_right(24)
        .margin_top(10)
        .x_label_area_size(8)
        .y_label_area_size(76)
        .build_cartesian_2d(sizes(rows), 0.0..top.max(f64::MIN_POSITIVE))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(0)
        .y_desc("usec, one way (half of round trip)")
        .y_label_formatter(&|us| format!("{us:.1}"))
        .label_style((FACE, 15))
        .axis_desc_style((FACE, 16))
        .draw()?;
    threshold(&mut chart, comparison, top)?;
    let bounces: Vec<(f64, f64)> = rows.iter().filter_map(bounce).collect();
    if !bounces.is_empty() {
        chart
            .draw_series(DashedLineSeries::new(bounces, 6, 4, GREY.stroke_width(2)))?
            .label("bounce, one line each way")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], GREY.stroke_width(2)));
    }
    for (index, mode) in MODES.into_iter().enumerate() {
        let points = rows.iter().map(|row| (row.bytes, row.modes()[index]));
        series(&mut chart, index, points.collect(), label(mode))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.9))
        .border_style(GREY)
        .label_font((FACE, 15))
        .margin(12)
        .legend_area_size(30)
        .draw()?;
    Ok(())
}

/// The lower part: how much faster or slower than by reference.
fn differences(area: &Area<'_>, comparison: &Comparison) -> Result<(), PlotError> {
    let rows = &comparison.rows;
    let percents = |row: &Row| {
        [
            percent(row.messages_to_by_reference.ratio),
            percent(row.all_to_by_reference.ratio),
        ]
    };
    let spreads: Vec<Spread> = rows.iter().flat_map(percents).collect();
    let lowest = spreads.iter().map(|spread| spread.p25).fold(-4.0, f64::min);
    let highest = spreads.iter().map(|spread| spread.p75).fold(4.0, f64::max);
    let room = (highest - lowest) * 0.08;
    let range = lowest - room..highest + room;
    let mut chart = ChartBuilder::on(area)
        .margin_left(14)
        .margin_right(24)
        .margin_top(6)
        .x_label_area_size(62)
        .y_label_area_size(76)
        .build_cartesian_2d(sizes(rows), range.clone())?;
    let name = |x: &f64| size_name(*x);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(rows.len().clamp(2, 16))
        .x_label_formatter(&name)
        .x_desc(circumstances(comparison))
        .y_desc("% against by reference")
        .y_label_formatter(&|percent| format!("{percent:+.0}"))
        .label_style((FACE, 15))
        .axis_desc_style((FACE, 16))
        .draw()?;
    threshold(&mut chart, comparison, range.end)?;
    let ends = |y: f64| [sizes(rows).start, sizes(rows).end].map(|x| (x, y));
    chart.draw_series(LineSeries::new(ends(0.0), COLOURS[0].stroke_width(2)))?;
    let slower = (SLOWER_RATIO - 1.0) * 100.0;
    chart.draw_series(DashedLineSeries::new(
        ends(slower),
        6,
        4,
        GREY.stroke_width(1),
    ))?;
    for (place, index) in [1, 2].into_iter().enumerate() {
        let points = rows.iter().map(|row| (row.bytes, percents(row)[place]));
        series(&mut chart, index, points.collect(), "")?;
    }
    Ok(())
}

/// One mode: a line through the medians, a mark at each, and the quartiles as a bar.
fn series<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    index: usize,
    points: Vec<(u32, Spread)>,
    name: &str,
) -> Result<(), PlotError> {
    let colour = COLOURS[index];
    let x = |bytes: u32| f64::from(bytes).log2() + (index as f64 - 1.0) * APART;
    let medians = points
        .iter()
        .map(|(bytes, spread)| (x(*bytes), spread.median));
    let line = chart.draw_series(LineSeries::new(medians.clone(), colour.stroke_width(2)))?;
    if !name.is_empty() {
        line.label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2)));
    }
    let bars = points.iter().map(|(bytes, spread)| {
        let ends = [(x(*bytes), spread.p25), (x(*bytes), spread.p75)];
        PathElement::new(ends, colour.stroke_width(3))
    });
    chart.draw_series(bars)?;
    let style = colour.filled();
    // A shape for each mode.
    match index {
        0 => chart.draw_series(medians.map(|at| Circle::new(at, 4, style)))?,
        1 => chart.draw_series(medians.map(|at| TriangleMarker::new(at, 6, style)))?,
        _ => chart.draw_series(medians.map(|at| Cross::new(at, 4, colour.stroke_width(3))))?,
    };
    Ok(())
}

/// A dotted line where WRITEs cease to go inline, if that is within the picture.
fn threshold(
    chart: &mut Chart<'_, '_>,
    comparison: &Comparison,
    top: f64,
) -> Result<(), PlotError> {
    // Behind the marks of a size that is just short enough.
    let x = f64::from(comparison.head.threshold).log2() + 2.0 * APART;
    let range = sizes(&comparison.rows);
    if !range.contains(&x) {
        return Ok(());
    }
    let bottom = chart.y_range().start;
    let ends = [(x, bottom), (x, top)];
    chart.draw_series(DashedLineSeries::new(
        ends,
        2,
        5,
        BLACK.mix(0.5).stroke_width(1),
    ))?;
    Ok(())
}

/// The bounce of the time of one size.
fn bounce(row: &Row) -> Option<(f64, f64)> {
    Some((f64::from(row.bytes).log2(), row.bounce_us?))
}

/// The axis of sizes, as logarithms to base two.
fn sizes(rows: &[Row]) -> std::ops::Range<f64> {
    let logs = rows.iter().map(|row| f64::from(row.bytes).log2());
    let (least, greatest) = logs.fold((f64::MAX, f64::MIN), |(least, greatest), log| {
        (least.min(log), greatest.max(log))
    });
    least - 0.3..greatest + 0.3
}

/// `64` or `2K`, at whole powers of two.
fn size_name(log: f64) -> String {
    if (log - log.round()).abs() > 1e-6 || log < 0.0 {
        return String::new();
    }
    match log.round() as u32 {
        log @ 0..10 => format!("{}", 1_u32 << log),
        log @ 10..20 => format!("{}K", 1_u32 << (log - 10)),
        log => format!("2^{log}"),
    }
}

/// A ratio and its spread as per cent above or below one.
fn percent(ratio: Spread) -> Spread {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    Spread {
        median: percent(ratio.median),
        p25: percent(ratio.p25),
        p75: percent(ratio.p75),
        min: percent(ratio.min),
        max: percent(ratio.max),
    }
}

/// Name of the lower axis, and what the picture depends on.
fn circumstances(comparison: &Comparison) -> String {
    let head = &comparison.head;
    let setting = &head.setting;
    let cores = match setting.other_core {
        Some(other) => format!("cores {} and {other}", setting.this_core),
        None => format!("core {}", setting.this_core),
    };
    let build = match setting.build {
        Build::Release => "",
        Build::Debug => ", debug build",
    };
    format!(
        "bytes of a message ({cores}, {}, {} rounds{build}; dotted: WRITEs inline up to {} bytes)",
        setting.mode, head.rounds, head.threshold
    )
}
