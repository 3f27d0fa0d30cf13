//! A string table: each text once, referred to by its index.

use std::collections::HashMap;
use std::rc::Rc;

/// Texts in the order of their first use.
#[derive(Debug, Default)]
pub(super) struct Strings {
    places: HashMap<Rc<str>, u32>,
    list: Vec<Rc<str>>,
}

impl Strings {
    /// The index of `text`, which is added if it is new.
    pub(super) fn place(&mut self, text: &str) -> u32 {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        let place = self.list.len() as u32;
        let text: Rc<str> = Rc::from(text);
        self.list.push(Rc::clone(&text));
        self.places.insert(text, place);
        place
    }

    /// All texts by index.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|text| &**text)
    }
}
