//! A string table: each text once, referred to by its index.

use std::collections::HashMap;
use std::rc::Rc;

/// Texts in the order of their first use.
#[derive(Debug, Default)]
pub(super) struct Strings {
    indexes: HashMap<Rc<str>, u32>,
    list: Vec<Rc<str>>,
}

impl Strings {
    /// The index of `text`, which is added if it is new.
    pub(super) fn index_of(&mut self, text: &str) -> u32 {
        if let Some(&index) = self.indexes.get(text) {
            return index;
        }
        let index = self.list.len() as u32;
        let text: Rc<str> = Rc::from(text);
        self.list.push(Rc::clone(&text));
        self.indexes.insert(text, index);
        index
    }

    /// All texts by index.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|text| &**text)
    }
}
