//! Curves over steps as a PNG: panels one above the other, with a bitmap font of embedded-graphics, so that no font of the
//! system is needed.

use std::convert::Infallible;
use std::path::Path;

use embedded_graphics::Drawable;
use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::FONT_7X13;
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::primitives::{Line, Polyline, Primitive, PrimitiveStyle, Rectangle};
use embedded_graphics::text::{Alignment, Text};

use crate::TrainError;

const WIDTH: u32 = 960;
const PANEL: u32 = 280;
/// Room for the numbers at the left, and around the curves.
const LEFT: i32 = 70;
const MARGIN: i32 = 34;
/// Lines with a number, besides the lowest.
const MARKS: i32 = 4;
const INK: Rgb888 = Rgb888::new(40, 40, 40);
const GRID: Rgb888 = Rgb888::new(225, 225, 225);
const CURVE: Rgb888 = Rgb888::new(30, 90, 180);

/// One chart.
#[derive(Debug, Clone)]
pub struct Panel<'a> {
    /// Above it.
    pub title: &'a str,
    /// In it, all on one scale.
    pub curves: Vec<Curve>,
}

/// Points by rising steps.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Step and value.
    pub points: Vec<(f64, f64)>,
}

/// Pixels in memory.
struct Canvas {
    size: Size,
    bytes: Vec<u8>,
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        self.size
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        for Pixel(point, color) in pixels {
            let (Ok(x), Ok(y)) = (usize::try_from(point.x), usize::try_from(point.y)) else { continue };
            if x < self.size.width as usize && y < self.size.height as usize {
                let at = 3 * (y * self.size.width as usize + x);
                self.bytes[at..at + 3].copy_from_slice(&[color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}

/// Smallest and largest value, apart from each other.
#[derive(Debug, Clone, Copy)]
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            return Range { low: 0.0, high: 1.0 };
        }
        let room = if low == high { 0.5 } else { 0.0 };
        Range { low: low - room, high: high + room }
    }

    fn share(self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

/// Draws panels into a file.
///
/// # Errors
/// `Io`; `File` where the image cannot be encoded.
pub fn draw(panels: &[Panel<'_>], path: &Path) -> Result<(), TrainError> {
    let size = Size::new(WIDTH, PANEL * panels.len() as u32);
    let mut canvas = Canvas { size, bytes: vec![255; 3 * (size.width * size.height) as usize] };
    for (i, panel) in panels.iter().enumerate() {
        let Ok(()) = panel.draw(&mut canvas, PANEL as i32 * i as i32);
    }
    let file = std::fs::File::create(path).map_err(TrainError::io(path))?;
    let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), size.width, size.height);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&canvas.bytes));
    written.map_err(|error| TrainError::File { path: path.to_owned(), problem: error.to_string() })
}

impl Panel<'_> {
    fn draw(&self, canvas: &mut Canvas, top: i32) -> Result<(), Infallible> {
        let all = || self.curves.iter().flat_map(|curve| &curve.points);
        let (steps, values) = (Range::of(all().map(|p| p.0)), Range::of(all().map(|p| p.1)));
        let (right, upper, lower) = (WIDTH as i32 - MARGIN, top + MARGIN, top + PANEL as i32 - MARGIN);
        let place = |(step, value): &(f64, f64)| {
            let x = LEFT + (steps.share(*step) * f64::from(right - LEFT)).round() as i32;
            let y = lower - (values.share(*value) * f64::from(lower - upper)).round() as i32;
            Point::new(x, y)
        };
        let text = MonoTextStyle::new(&FONT_7X13, INK);
        Text::new(self.title, Point::new(LEFT, upper - 12), text).draw(canvas)?;
        for mark in 0..=MARKS {
            let value = values.low + (values.high - values.low) * f64::from(mark) / f64::from(MARKS);
            let y = lower - (lower - upper) * mark / MARKS;
            let line = Line::new(Point::new(LEFT, y), Point::new(right, y));
            line.into_styled(PrimitiveStyle::with_stroke(GRID, 1)).draw(canvas)?;
            let label = format!("{value:.3}");
            Text::with_alignment(&label, Point::new(LEFT - 8, y + 4), text, Alignment::Right).draw(canvas)?;
        }
        for (step, x, alignment) in [(steps.low, LEFT, Alignment::Left), (steps.high, right, Alignment::Right)] {
            let label = format!("step {step:.0}");
            Text::with_alignment(&label, Point::new(x, lower + 18), text, alignment).draw(canvas)?;
        }
        let frame = Rectangle::with_corners(Point::new(LEFT, upper), Point::new(right, lower));
        frame.into_styled(PrimitiveStyle::with_stroke(INK, 1)).draw(canvas)?;
        for curve in &self.curves {
            let points: Vec<Point> = curve.points.iter().filter(|p| p.1.is_finite()).map(place).collect();
            Polyline::new(&points).into_styled(PrimitiveStyle::with_stroke(CURVE, 2)).draw(canvas)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(points: Vec<(f64, f64)>) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.png");
        draw(&[Panel { title: "t", curves: vec![Curve { points }] }], &path).unwrap();
        let file = std::io::BufReader::new(std::fs::File::open(&path).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_curve_is_drawn_from_corner_to_corner() {
        let bytes = pixels(vec![(0.0, 1.0), (10.0, 3.0)]);
        let at = |x: i32, y: i32| {
            let start = 3 * (y as usize * WIDTH as usize + x as usize);
            Rgb888::new(bytes[start], bytes[start + 1], bytes[start + 2])
        };
        let near = |x: i32, y: i32| (y - 2..=y + 2).any(|y| at(x, y) == CURVE);
        let (right, lower) = (WIDTH as i32 - MARGIN, PANEL as i32 - MARGIN);
        assert!(near(LEFT + 2, lower) && near(right - 2, MARGIN) && near((LEFT + right) / 2, (MARGIN + lower) / 2));
        assert_eq!(at(LEFT + 20, MARGIN + 20), Rgb888::WHITE);
    }

    #[test]
    fn nothing_one_point_and_numbers_that_are_none_do_no_harm() {
        for points in [vec![], vec![(3.0, 2.0)], vec![(1.0, f64::NAN), (2.0, 1.0), (3.0, f64::INFINITY)]] {
            assert_eq!(pixels(points).len(), 3 * (WIDTH * PANEL) as usize);
        }
    }
}
