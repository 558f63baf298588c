//! The control protocol between a program and the appliance.
//!
//! One message is one packet on a Unix socket of type SOCK_SEQPACKET ([`crate::packet`]). Integers
//! are little-endian. A message starts with its kind (u16) and its length (u16, all bytes), so a
//! packet that lost or gained bytes is noticed. Every parse is strict: unknown kinds, wrong lengths,
//! wrong numbers of descriptors, bytes left over and texts that are not UTF-8 are errors.
//!
//! | kind | from | message | descriptors |
//! |---|---|---|---|
//! | 1 | program | Hello: version u32, sndbuf u32, rmbe u32, slots u16, name | - |
//! | 2 | program | Upgrade: request u32, role u8 | the connected TCP socket |
//! | 3 | both | Released: slot u16, generation u16 | - |
//! | 16 | appliance | Welcome: version u32, session u32 | segment, worker's eventfd, program's pipe |
//! | 17 | appliance | Refused: text | - |
//! | 18 | appliance | Accelerated: request u32, slot u16, generation u16 | - |
//! | 19 | appliance | Fallback: request u32, code u32, text | - |
//! | 20 | appliance | Failed: request u32, errno i32, text | - |
//!
//! A text is the rest of the message. The descriptors of Welcome are, in this order, the session's
//! segment, the eventfd that wakes the worker, and the reading end of the pipe that wakes the
//! program (see [`pollux_ring::wake_channel`] for why it is a pipe).
//!
//! Each Upgrade gets exactly one answer, in any order. Released says that a side will not touch a
//! slot's memory again on behalf of that generation; the appliance uses the slot again when it is
//! done itself and the program has said so ([`crate::slots::SlotTable`]).
//!
//! # The end of a program
//!
//! A program that ends, in whatever way, closes its socket. The kernel would send what was written
//! and close its connections, and so does the appliance: the worker first takes the submissions
//! that are left ([`crate::shared::WorkerSide::poll`] until it gives nothing), since a Close may be
//! among them, and then treats every connection that is still open as closed. The memory of the
//! session lives until the last of them is over. After a [`crate::shared::Violation`] there is
//! nothing to be taken: the connections are reset, and the appliance closes the socket.

use thiserror::Error;

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Longest text in a message, in bytes; longer ones are cut when they are emitted.
pub const TEXT_BYTES_MAX: usize = 256;
/// Most descriptors that come with a message.
pub const FDS_MAX: usize = 3;

const HEADER_BYTES: usize = 4;

const HELLO: u16 = 1;
const UPGRADE: u16 = 2;
const RELEASED: u16 = 3;
const WELCOME: u16 = 16;
const REFUSED: u16 = 17;
const ACCELERATED: u16 = 18;
const FALLBACK: u16 = 19;
const FAILED: u16 = 20;

/// Which side of the TCP connection a program was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It called connect.
    Client,
    /// It called accept.
    Server,
}

/// What a program says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first message. 0 stands for the appliance's default.
    Hello {
        /// [`crate::layout::VERSION`] of the program.
        version: u32,
        /// Connections wanted at a time.
        slots: u16,
        /// Bytes of each sndbuf.
        sndbuf_bytes: u32,
        /// Bytes of each RMBE.
        rmbe_bytes: u32,
        /// The program's name, for the operator.
        name: String,
    },
    /// Speak SMC on a TCP connection, whose socket comes with the message.
    Upgrade {
        /// Number by which the answer names it.
        request: u32,
        /// The program's role.
        role: Role,
    },
    /// The program is done with a slot.
    Released {
        /// The slot.
        slot: u16,
        /// Which of its connections.
        generation: u16,
    },
}

/// What the appliance says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The answer to Hello; memory and descriptors come with it.
    Welcome {
        /// [`crate::layout::VERSION`] of the appliance.
        version: u32,
        /// The session's number, as the operator sees it.
        session: u32,
    },
    /// The other answer to Hello; the appliance then closes the socket.
    Refused {
        /// Why, and what to do.
        text: String,
    },
    /// The connection runs over shared memory from now on.
    Accelerated {
        /// Number of the Upgrade.
        request: u32,
        /// The connection's slot.
        slot: u16,
        /// Which of the slot's connections it is.
        generation: u16,
    },
    /// The connection stays on TCP; the program goes on with its own socket.
    Fallback {
        /// Number of the Upgrade.
        request: u32,
        /// Diagnosis code of the CLC Decline (RFC 7609), 0 if there was none.
        code: u32,
        /// The reason in words.
        text: String,
    },
    /// The connection is lost.
    Failed {
        /// Number of the Upgrade.
        request: u32,
        /// What a system call would have returned.
        errno: i32,
        /// The reason in words.
        text: String,
    },
    /// The appliance is done with a slot.
    Released {
        /// The slot.
        slot: u16,
        /// Which of its connections.
        generation: u16,
    },
}

/// A packet that is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Shorter than a header, or than its kind needs.
    #[error("a message of {bytes} bytes is too short for its kind {kind}")]
    TooShort {
        /// Bytes received.
        bytes: usize,
        /// The kind, 0 if not even that is there.
        kind: u16,
    },
    /// The length in the header is not the packet's.
    #[error("a message says that it has {said} bytes and has {bytes}")]
    Length {
        /// Bytes received.
        bytes: usize,
        /// Length in the header.
        said: u16,
    },
    /// A kind that this side does not expect.
    #[error("a message has the unknown kind {kind}; both sides must be of the same version")]
    Kind {
        /// The kind.
        kind: u16,
    },
    /// Bytes left over.
    #[error("a message of kind {kind} has {extra} bytes too many")]
    TooLong {
        /// The kind.
        kind: u16,
        /// Bytes left over.
        extra: usize,
    },
    /// A text that is too long or no UTF-8.
    #[error("a message of kind {kind} carries a text that is no UTF-8 of at most 256 bytes")]
    Text {
        /// The kind.
        kind: u16,
    },
    /// A role that is neither client nor server.
    #[error("an upgrade names the unknown role {role}")]
    Role {
        /// The role's byte.
        role: u8,
    },
    /// The wrong number of descriptors.
    #[error("a message of kind {kind} came with {found} descriptors instead of {expected}")]
    Fds {
        /// The kind.
        kind: u16,
        /// Descriptors received.
        found: usize,
        /// Descriptors that belong to the kind.
        expected: usize,
    },
}

impl Request {
    /// The message as bytes of a packet.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Request::Hello {
                version,
                slots,
                sndbuf_bytes,
                rmbe_bytes,
                name,
            } => Writer::new(HELLO)
                .u32(*version)
                .u32(*sndbuf_bytes)
                .u32(*rmbe_bytes)
                .u16(*slots)
                .text(name)
                .finish(),
            Request::Upgrade { request, role } => {
                let role = match role {
                    Role::Client => 1,
                    Role::Server => 2,
                };
                Writer::new(UPGRADE).u32(*request).u8(role).finish()
            }
            Request::Released { slot, generation } => {
                Writer::new(RELEASED).u16(*slot).u16(*generation).finish()
            }
        }
    }

    /// A program's message that came as `bytes` with `fds` descriptors.
    ///
    /// # Errors
    ///
    /// [`MessageError`] unless it is exactly a message.
    pub fn parse(bytes: &[u8], fds: usize) -> Result<Request, MessageError> {
        let mut reader = Reader::new(bytes)?;
        let (request, expected) = match reader.kind {
            HELLO => {
                let (version, sndbuf_bytes) = (reader.u32()?, reader.u32()?);
                let (rmbe_bytes, slots) = (reader.u32()?, reader.u16()?);
                let name = reader.text()?;
                (
                    Request::Hello {
                        version,
                        slots,
                        sndbuf_bytes,
                        rmbe_bytes,
                        name,
                    },
                    0,
                )
            }
            UPGRADE => {
                let request = reader.u32()?;
                let role = match reader.u8()? {
                    1 => Role::Client,
                    2 => Role::Server,
                    role => return Err(MessageError::Role { role }),
                };
                (Request::Upgrade { request, role }, 1)
            }
            RELEASED => (
                Request::Released {
                    slot: reader.u16()?,
                    generation: reader.u16()?,
                },
                0,
            ),
            kind => return Err(MessageError::Kind { kind }),
        };
        reader.finish(fds, expected)?;
        Ok(request)
    }
}

impl Reply {
    /// The message as bytes of a packet.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Reply::Welcome { version, session } => {
                Writer::new(WELCOME).u32(*version).u32(*session).finish()
            }
            Reply::Refused { text } => Writer::new(REFUSED).text(text).finish(),
            Reply::Accelerated {
                request,
                slot,
                generation,
            } => Writer::new(ACCELERATED)
                .u32(*request)
                .u16(*slot)
                .u16(*generation)
                .finish(),
            Reply::Fallback {
                request,
                code,
                text,
            } => Writer::new(FALLBACK)
                .u32(*request)
                .u32(*code)
                .text(text)
                .finish(),
            Reply::Failed {
                request,
                errno,
                text,
            } => Writer::new(FAILED)
                .u32(*request)
                .u32(errno.cast_unsigned())
                .text(text)
                .finish(),
            Reply::Released { slot, generation } => {
                Writer::new(RELEASED).u16(*slot).u16(*generation).finish()
            }
        }
    }

    /// The appliance's message that came as `bytes` with `fds` descriptors.
    ///
    /// # Errors
    ///
    /// [`MessageError`] unless it is exactly a message.
    pub fn parse(bytes: &[u8], fds: usize) -> Result<Reply, MessageError> {
        let mut reader = Reader::new(bytes)?;
        let (reply, expected) = match reader.kind {
            WELCOME => (
                Reply::Welcome {
                    version: reader.u32()?,
                    session: reader.u32()?,
                },
                FDS_MAX,
            ),
            REFUSED => (
                Reply::Refused {
                    text: reader.text()?,
                },
                0,
            ),
            ACCELERATED => {
                let request = reader.u32()?;
                let (slot, generation) = (reader.u16()?, reader.u16()?);
                (
                    Reply::Accelerated {
                        request,
                        slot,
                        generation,
                    },
                    0,
                )
            }
            FALLBACK => {
                let (request, code) = (reader.u32()?, reader.u32()?);
                (
                    Reply::Fallback {
                        request,
                        code,
                        text: reader.text()?,
                    },
                    0,
                )
            }
            FAILED => {
                let (request, errno) = (reader.u32()?, reader.u32()?.cast_signed());
                (
                    Reply::Failed {
                        request,
                        errno,
                        text: reader.text()?,
                    },
                    0,
                )
            }
            RELEASED => (
                Reply::Released {
                    slot: reader.u16()?,
                    generation: reader.u16()?,
                },
                0,
            ),
            kind => return Err(MessageError::Kind { kind }),
        };
        reader.finish(fds, expected)?;
        Ok(reply)
    }
}

/// Builds a message.
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn new(kind: u16) -> Writer {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        Writer { bytes }
    }

    fn u8(mut self, value: u8) -> Writer {
        self.bytes.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Writer {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Writer {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Writer {
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        self.bytes.extend_from_slice(&text.as_bytes()[..end]);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        debug_assert!(self.bytes.len() <= MESSAGE_BYTES_MAX);
        let length = (self.bytes.len() as u16).to_le_bytes();
        self.bytes[2..HEADER_BYTES].copy_from_slice(&length);
        self.bytes
    }
}

/// Takes a message apart.
struct Reader<'a> {
    kind: u16,
    bytes: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(packet: &'a [u8]) -> Result<Reader<'a>, MessageError> {
        let bytes = packet.len();
        let mut reader = Reader {
            kind: 0,
            bytes,
            rest: packet,
        };
        reader.kind = reader.u16()?;
        let said = reader.u16()?;
        if usize::from(said) != bytes {
            return Err(MessageError::Length { bytes, said });
        }
        Ok(reader)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let short = MessageError::TooShort {
            bytes: self.bytes,
            kind: self.kind,
        };
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(short)?;
        self.rest = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, MessageError> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.take().map(u32::from_le_bytes)
    }

    /// The rest of the message.
    fn text(&mut self) -> Result<String, MessageError> {
        let bytes = std::mem::take(&mut self.rest);
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(MessageError::Text { kind: self.kind });
        }
        let text = str::from_utf8(bytes).map_err(|_| MessageError::Text { kind: self.kind })?;
        Ok(text.to_owned())
    }

    fn finish(self, found: usize, expected: usize) -> Result<(), MessageError> {
        let kind = self.kind;
        if !self.rest.is_empty() {
            return Err(MessageError::TooLong {
                kind,
                extra: self.rest.len(),
            });
        }
        if found != expected {
            return Err(MessageError::Fds {
                kind,
                found,
                expected,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = (Request, usize)> {
        prop_oneof![
            (
                any::<u32>(),
                any::<u16>(),
                any::<u32>(),
                any::<u32>(),
                "[a-zä]{0,100}"
            )
                .prop_map(|(version, slots, sndbuf_bytes, rmbe_bytes, name)| {
                    (
                        Request::Hello {
                            version,
                            slots,
                            sndbuf_bytes,
                            rmbe_bytes,
                            name,
                        },
                        0,
                    )
                }),
            any::<u32>().prop_map(|request| {
                let role = if request % 2 == 0 {
                    Role::Client
                } else {
                    Role::Server
                };
                (Request::Upgrade { request, role }, 1)
            }),
            any::<(u16, u16)>()
                .prop_map(|(slot, generation)| (Request::Released { slot, generation }, 0)),
        ]
    }

    fn reply() -> impl Strategy<Value = (Reply, usize)> {
        let text = || "[a-zü ]{0,100}";
        prop_oneof![
            any::<(u32, u32)>()
                .prop_map(|(version, session)| (Reply::Welcome { version, session }, 3)),
            text().prop_map(|text| (Reply::Refused { text }, 0)),
            any::<(u32, u16, u16)>().prop_map(|(request, slot, generation)| {
                (
                    Reply::Accelerated {
                        request,
                        slot,
                        generation,
                    },
                    0,
                )
            }),
            (any::<u32>(), any::<u32>(), text()).prop_map(|(request, code, text)| (
                Reply::Fallback {
                    request,
                    code,
                    text
                },
                0
            )),
            (any::<u32>(), any::<i32>(), text()).prop_map(|(request, errno, text)| (
                Reply::Failed {
                    request,
                    errno,
                    text
                },
                0
            )),
            any::<(u16, u16)>()
                .prop_map(|(slot, generation)| (Reply::Released { slot, generation }, 0)),
        ]
    }

    proptest! {
        #[test]
        fn requests_round_trip_and_are_strict((request, fds) in request()) {
            let bytes = request.emit();
            prop_assert_eq!(Request::parse(&bytes, fds), Ok(request));
            prop_assert!(Request::parse(&bytes, fds + 1).is_err());
            prop_assert!(Request::parse(&bytes[..bytes.len() - 1], fds).is_err());
            prop_assert!(Request::parse(&[&bytes[..], &[0]].concat(), fds).is_err());
        }

        #[test]
        fn replies_round_trip_and_are_strict((reply, fds) in reply()) {
            let bytes = reply.emit();
            prop_assert_eq!(Reply::parse(&bytes, fds), Ok(reply));
            prop_assert!(Reply::parse(&bytes, fds + 1).is_err());
            prop_assert!(Reply::parse(&bytes[..bytes.len() - 1], fds).is_err());
            prop_assert!(Reply::parse(&[&bytes[..], &[0]].concat(), fds).is_err());
        }

        #[test]
        fn any_packet_is_a_message_that_emits_the_same_or_an_error(
            kind in 0u16..24, mut bytes in prop::collection::vec(any::<u8>(), 0..64), fds in 0usize..4,
        ) {
            if let [a, b, c, d, ..] = bytes.as_mut_slice() {
                [*a, *b] = kind.to_le_bytes();
                *c = *d % 64;
                *d = 0;
            }
            let length = bytes.len() as u8;
            if let Some(byte) = bytes.get_mut(2) {
                *byte = length;
            }
            if let Ok(request) = Request::parse(&bytes, fds) {
                prop_assert_eq!(request.emit(), bytes.clone());
            }
            if let Ok(reply) = Reply::parse(&bytes, fds) {
                prop_assert_eq!(reply.emit(), bytes);
            }
        }
    }

    #[test]
    fn layout_of_each_kind_is_fixed() {
        let upgrade = Request::Upgrade {
            request: 0x0102_0304,
            role: Role::Server,
        };
        assert_eq!(upgrade.emit(), [2, 0, 9, 0, 4, 3, 2, 1, 2]);
        let hello = Request::Hello {
            version: 1,
            slots: 2,
            sndbuf_bytes: 3,
            rmbe_bytes: 4,
            name: "ab".to_owned(),
        };
        let expected = [
            1, 0, 20, 0, 1, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, b'a', b'b',
        ];
        assert_eq!(hello.emit(), expected);
        let accelerated = Reply::Accelerated {
            request: 7,
            slot: 8,
            generation: 9,
        };
        assert_eq!(accelerated.emit(), [18, 0, 12, 0, 7, 0, 0, 0, 8, 0, 9, 0]);
        let failed = Reply::Failed {
            request: 7,
            errno: -1,
            text: "x".to_owned(),
        };
        assert_eq!(
            failed.emit(),
            [20, 0, 13, 0, 7, 0, 0, 0, 255, 255, 255, 255, b'x']
        );
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "ä".repeat(200);
        let reply = Reply::Refused { text };
        let parsed = Reply::parse(&reply.emit(), 0);
        assert_eq!(
            parsed,
            Ok(Reply::Refused {
                text: "ä".repeat(128)
            })
        );
        let odd = Reply::Refused {
            text: format!("a{}", "ä".repeat(200)),
        };
        let parsed = Reply::parse(&odd.emit(), 0);
        assert_eq!(
            parsed,
            Ok(Reply::Refused {
                text: format!("a{}", "ä".repeat(127))
            })
        );
    }

    #[test]
    fn text_that_is_no_utf8_or_too_long_is_refused() {
        let mut bytes = vec![17, 0, 5, 0, 0xff];
        assert_eq!(
            Reply::parse(&bytes, 0),
            Err(MessageError::Text { kind: REFUSED })
        );
        bytes = vec![b'x'; 4 + 257];
        bytes[..4].copy_from_slice(&[17, 0, 5, 1]);
        assert_eq!(
            Reply::parse(&bytes, 0),
            Err(MessageError::Text { kind: REFUSED })
        );
    }
}
