//! Generic code that the compiler inlines into this crate, several deep.
use std::collections::{BTreeMap, HashMap};

trait Shape {
    fn area(&self) -> f64;
}

struct Circle(f64);
struct Square(f64);

impl Shape for Circle {
    fn area(&self) -> f64 {
        self.0 * self.0 * 3.14
    }
}

impl Shape for Square {
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}

#[inline(never)]
fn count(text: &str) -> HashMap<String, usize> {
    let mut words = HashMap::new();
    for word in text.split_whitespace() {
        *words.entry(word.to_lowercase()).or_default() += 1;
    }
    words
}

#[inline(never)]
fn table(words: &HashMap<String, usize>) -> BTreeMap<usize, Vec<&str>> {
    let mut table: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (word, count) in words {
        table.entry(*count).or_default().push(word);
    }
    for list in table.values_mut() {
        list.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    }
    table
}

#[inline(never)]
fn areas(shapes: &[Box<dyn Shape>]) -> f64 {
    shapes.iter().map(|shape| shape.area()).filter(|area| *area > 2.0).sum()
}

fn main() {
    let text: String = std::env::args().collect::<Vec<_>>().join(" ");
    let words = count(&text);
    let shapes: Vec<Box<dyn Shape>> = vec![Box::new(Circle(1.0)), Box::new(Square(text.len() as f64))];
    println!("{:?} {}", table(&words), areas(&shapes));
}
