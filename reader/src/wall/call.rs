//! Decodes the call instruction before a return address (Intel 64 manual, volume 2: CALL).

/// The call before an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A call to this address.
    Direct(u64),
    /// A call through a register or memory.
    Indirect,
}

/// The call that ends at `address`; `byte` reads code.
pub(super) fn before(address: u64, byte: &mut dyn FnMut(u64) -> Option<u8>) -> Option<Call> {
    let mut code = [0; 7];
    for (to, at) in code.iter_mut().zip(address.checked_sub(7)?..) {
        *to = byte(at)?;
    }
    if let [.., 0xe8, b1, b2, b3, b4] = code {
        return Some(Call::Direct(address.wrapping_add(i32::from_le_bytes([b1, b2, b3, b4]) as u64)));
    }
    // FF /2, by the length of what follows: ModRM, then SIB and a displacement.
    (2..=7).any(|len| is_indirect(&code[7 - len..])).then_some(Call::Indirect)
}

/// True if the bytes are one call `FF /2`.
fn is_indirect(code: &[u8]) -> bool {
    let [0xff, modrm, rest @ ..] = code else { return false };
    let (mode, register, memory) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    let sib = usize::from(mode != 3 && memory == 4);
    let displacement = match (mode, memory) {
        (0, 5) | (2, _) => 4,
        (0, 4) if rest.first().is_some_and(|sib| sib & 7 == 5) => 4,
        (1, _) => 1,
        _ => 0,
    };
    register == 2 && rest.len() == sib + displacement
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Option<Call> {
        let mut code = vec![0x90; 7 - bytes.len()];
        code.extend_from_slice(bytes);
        before(0x1007, &mut |address| code.get((address - 0x1000) as usize).copied())
    }

    #[test]
    fn calls_are_known_by_their_bytes() {
        assert_eq!(of(&[0xe8, 0xf9, 0xff, 0xff, 0xff]), Some(Call::Direct(0x1000)));
        for indirect in [
            &[0xff, 0xd0][..],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x54, 0x24, 0x08],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],
        ] {
            assert_eq!(of(indirect), Some(Call::Indirect), "{indirect:x?}");
        }
        assert_eq!(of(&[0x90]), None);
        assert_eq!(of(&[0xff, 0xe0]), None, "a jump");
    }
}
