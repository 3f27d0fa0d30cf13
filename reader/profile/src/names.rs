//! Interned strings.

use std::collections::HashMap;
use std::sync::Arc;

/// Number of a text in its [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// A set of texts, numbered in the order of their first appearance.
#[derive(Debug, Default)]
pub struct Names {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, NameId>,
}

impl Names {
    /// The number of `text`, which is added if it is new.
    pub fn intern(&mut self, text: &str) -> NameId {
        if let Some(&id) = self.numbers.get(text) {
            return id;
        }
        let id = NameId(self.texts.len() as u32);
        let text: Arc<str> = Arc::from(text);
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, id);
        id
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// All texts in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }

    /// The text of a number assigned by this set.
    pub fn get(&self, id: NameId) -> &str {
        &self.texts[id.0 as usize]
    }
}
