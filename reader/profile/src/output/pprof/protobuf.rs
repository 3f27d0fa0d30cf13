//! Encodes protocol buffers (<https://protobuf.dev/programming-guides/encoding/>).
//!
//! Fields with their default value are left out, as proto3 does.

const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;

/// The fields of one message.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// An integer; signed ones are passed in two's complement.
    pub(super) fn integer(&mut self, field: u64, value: u64) -> &mut Self {
        if value != 0 {
            varint(&mut self.0, field << 3 | VARINT);
            varint(&mut self.0, value);
        }
        self
    }

    /// A Boolean.
    pub(super) fn boolean(&mut self, field: u64, value: bool) -> &mut Self {
        self.integer(field, u64::from(value))
    }

    /// A repeated integer, packed.
    pub(super) fn integers(&mut self, field: u64, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut packed = Vec::new();
        values.into_iter().for_each(|value| varint(&mut packed, value));
        if packed.is_empty() { self } else { self.bytes(field, &packed) }
    }

    /// A message within this one, or one of a list; written even when it is empty.
    pub(super) fn message(&mut self, field: u64, message: &Message) -> &mut Self {
        self.bytes(field, &message.0)
    }

    /// One text of a list; written even when it is empty.
    pub(super) fn text(&mut self, field: u64, text: &str) -> &mut Self {
        self.bytes(field, text.as_bytes())
    }

    /// The encoded fields.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Removes all fields and keeps the memory.
    pub(super) fn clear(&mut self) -> &mut Self {
        self.0.clear();
        self
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        varint(&mut self.0, field << 3 | LENGTH_DELIMITED);
        varint(&mut self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Seven bits per byte, the lowest first; the top bit says that more follow.
fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::Message;

    #[test]
    fn examples_of_the_specification() {
        assert_eq!(Message::default().integer(1, 150).as_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().text(2, "testing").as_bytes(), b"\x12\x07testing");
        let inner = Message(vec![0x08, 0x96, 0x01]);
        assert_eq!(Message::default().message(3, &inner).as_bytes(), [0x1a, 3, 0x08, 0x96, 0x01]);
        let packed = [0x32, 6, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05];
        assert_eq!(Message::default().integers(6, [3, 270, 86942]).as_bytes(), packed);
        let minus_two = Message::default().integer(1, -2i64 as u64).as_bytes().to_vec();
        assert_eq!(minus_two, [8, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        assert!(Message::default().integer(1, 0).boolean(2, false).integers(3, []).as_bytes().is_empty());
        assert_eq!(Message::default().text(1, "").as_bytes(), [0x0a, 0]);
    }
}
