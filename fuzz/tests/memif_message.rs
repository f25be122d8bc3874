//! memif's control messages: any bytes are a message or none, and a message is what it says.

use sluicegate_memif::{MESSAGE_BYTES, Message};

#[test]
fn any_bytes_are_a_message_or_none() {
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(kind, rest)| {
        let mut bytes = [0; MESSAGE_BYTES];
        // Mostly a type that there is.
        bytes[0] = if *kind < 250 { kind % 9 } else { *kind };
        for (byte, value) in bytes[2..].iter_mut().zip(rest) {
            *byte = *value;
        }
        let Ok(message) = Message::decode(&bytes) else {
            assert!(bytes[0] == 0 || bytes[0] > 8, "refused: {bytes:?}");
            return;
        };
        let again = Message::decode(&message.encode()).expect("what was understood can be said");
        // Text may be one byte shorter, for it is ended by a zero; all else is the same.
        assert_eq!(message.what(), again.what());
        assert_eq!(again, Message::decode(&again.encode()).expect("again"));
        let shown = format!("{message:?}");
        assert!(!shown.contains('\u{1b}'), "nothing steers a terminal: {shown}");
    });
}
