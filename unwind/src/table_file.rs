//! Name and required ownership of a table's file: one definition for those who write tables and the programs that map
//! them. `docs/table-file.md` gives the reasons.

use crate::table::{Source, u32_at, u64_at};
use crate::table_layout::{BUILD_ID_AT, BUILD_ID_MAX, HEADER, MAGIC, VERSION};

/// Follows the build-id in a name. Contains the version, so that programs of different versions can share a directory.
const SUFFIX: &[u8] = b".v5.table";
const _: () = assert!(SUFFIX[2] == b'0' + VERSION as u8);

/// Longest name of a table's file, in bytes.
pub const FILE_NAME_MAX: usize = 2 * BUILD_ID_MAX + SUFFIX.len();

/// Length of a [`file_key`], in bytes. Linkers make build-ids of 8, 16, 20 or 32 bytes.
pub const FILE_KEY_LEN: usize = 33;
/// First byte of a [`file_key`].
const FILE_KEY_MARK: u8 = b'f';
const _: () = assert!(FILE_KEY_LEN <= BUILD_ID_MAX);

/// Number of leading bytes that [`is_whole`] needs.
pub const HEADER_LEN: usize = HEADER;

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// What a table has in place of a build-id if its file has none: size, time of modification, device and inode of the file.
pub fn file_key(file: &Source) -> [u8; FILE_KEY_LEN] {
    let mut key = [FILE_KEY_MARK; FILE_KEY_LEN];
    let numbers = [file.size, file.modified_ns, file.device, file.inode];
    for (bytes, number) in key[1..].as_chunks_mut().0.iter_mut().zip(numbers) {
        *bytes = number.to_le_bytes();
    }
    key
}

/// The file name of the table for `build_id`: its hexadecimal digits and `.v5.table`. `None` if the build-id is empty
/// or longer than [`BUILD_ID_MAX`].
pub fn name<'b>(build_id: &[u8], buffer: &'b mut [u8; FILE_NAME_MAX]) -> Option<&'b str> {
    if build_id.is_empty() || build_id.len() > BUILD_ID_MAX {
        return None;
    }
    let digits = build_id.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let hexadecimal = digits.map(|digit| if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
    let mut length = 0;
    for (to, byte) in buffer.iter_mut().zip(hexadecimal.chain(SUFFIX.iter().copied())) {
        *to = byte;
        length += 1;
    }
    core::str::from_utf8(buffer.get(..length)?).ok()
}

/// Whether [`name`] could have produced `name`.
pub fn is_name(name: &[u8]) -> bool {
    name.strip_suffix(SUFFIX).is_some_and(|digits| {
        let hexadecimal = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        hexadecimal && digits.len() % 2 == 0 && (2..=2 * BUILD_ID_MAX).contains(&digits.len())
    })
}

/// Whether a file of `length` bytes that begins with `header` is the complete table for `build_id`, judging by its
/// header alone.
pub fn is_whole(header: &[u8; HEADER_LEN], length: u64, build_id: &[u8]) -> bool {
    let id_length = u32_at(header, BUILD_ID_AT - 4).map(|length| length as usize);
    header.starts_with(&MAGIC)
        && u32_at(header, 8) == Some(VERSION)
        && u64_at(header, 16) == Some(length)
        && id_length == Some(build_id.len())
        && header.get(BUILD_ID_AT..).is_some_and(|id| id.starts_with(build_id))
}

/// Whether `user` may trust a file with this owner and mode (`st_uid`, `st_mode`): a regular file that only the user or
/// root can have written.
pub fn is_trusted(owner: u32, mode: u32, user: u32) -> bool {
    mode & TYPE == REGULAR && is_private(owner, mode, user)
}

/// Whether only `user` or root can change the entries of a directory with this owner and mode.
pub fn is_trusted_directory(owner: u32, mode: u32, user: u32) -> bool {
    mode & TYPE == DIRECTORY && is_private(owner, mode, user)
}

fn is_private(owner: u32, mode: u32, user: u32) -> bool {
    (owner == user || owner == 0) && mode & WRITABLE_BY_OTHERS == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let mut buffer = [0; FILE_NAME_MAX];
        assert_eq!(name(&[0x01, 0xaf], &mut buffer), Some("01af.v5.table"));
        assert_eq!(name(&[0xff; 48], &mut buffer).unwrap().len(), FILE_NAME_MAX);
        assert!(is_name(&buffer));
        assert_eq!(name(&[], &mut buffer), None);
        assert_eq!(name(&[0; 49], &mut buffer), None);
        assert!(is_name(b"01af.v5.table"));
        for other in ["01af.v2.table", "01a.v5.table", ".v5.table", "01AF.v5.table", ".01af.v5.table", "01af"]
        {
            assert!(!is_name(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn every_part_of_a_files_identity_is_in_its_key() {
        let file = Source { device: 1, inode: 2, size: 3, modified_ns: 4 };
        let key = file_key(&file);
        assert_eq!((key[0], key[1], key[9], key[17], key[25]), (b'f', 3, 4, 1, 2));
        for other in [
            Source { device: 1 << 63, ..file },
            Source { inode: 1 << 63, ..file },
            Source { size: 1 << 63, ..file },
            Source { modified_ns: 1 << 63, ..file },
        ] {
            assert_ne!(file_key(&other), key);
        }
        assert!(is_name(name(&key, &mut [0; FILE_NAME_MAX]).unwrap().as_bytes()));
    }

    #[test]
    fn which_owners_are_trusted() {
        for (owner, mode, expected) in [
            (1000, 0o100_600, true),
            (0, 0o100_644, true),
            (1001, 0o100_600, false),
            (1000, 0o100_660, false),
            (1000, 0o100_602, false),
            (1000, 0o040_700, false),
            (1000, 0o120_777, false),
        ] {
            assert_eq!(is_trusted(owner, mode, 1000), expected, "{owner} {mode:o}");
        }
        assert!(is_trusted_directory(0, 0o040_755, 1000));
        assert!(!is_trusted_directory(1000, 0o041_777, 1000));
        assert!(!is_trusted_directory(1000, 0o100_600, 1000));
    }
}
