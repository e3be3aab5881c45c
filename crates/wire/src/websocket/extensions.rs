//! The extensions in the server's handshake (`Sec-WebSocket-Extensions`, RFC 6455, section 9.1).

/// The extensions of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extensions {
    /// None.
    #[default]
    None,
    /// Only permessage-deflate.
    Deflate(Deflate),
    /// An unknown extension: the data cannot be interpreted.
    Unknown,
}

/// Parameters of permessage-deflate (RFC 7692, section 7.1). Window sizes are ignored: the decoder uses the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deflate {
    /// The server begins each message with an empty window.
    pub server_no_context_takeover: bool,
    /// The client begins each message with an empty window.
    pub client_no_context_takeover: bool,
}

impl Extensions {
    /// The extensions listed in these values of the response's `Sec-WebSocket-Extensions`.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Extensions {
        let mut extensions = Extensions::None;
        for extension in values.into_iter().flat_map(|value| value.split(|byte| *byte == b',')) {
            let mut parts = extension.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            if name.is_empty() {
                continue;
            }
            if !name.eq_ignore_ascii_case(b"permessage-deflate") || extensions != Extensions::None {
                return Extensions::Unknown;
            }
            let mut deflate = Deflate::default();
            for part in parts {
                let parameter = part.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
                deflate.server_no_context_takeover |= parameter.eq_ignore_ascii_case(b"server_no_context_takeover");
                deflate.client_no_context_takeover |= parameter.eq_ignore_ascii_case(b"client_no_context_takeover");
            }
            extensions = Extensions::Deflate(deflate);
        }
        extensions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Extensions {
        Extensions::of([value.as_bytes()])
    }

    #[test]
    fn parameters_of_deflate_are_read_in_any_order_and_case() {
        let deflate = |server, client| {
            Extensions::Deflate(Deflate { server_no_context_takeover: server, client_no_context_takeover: client })
        };
        assert_eq!(of(""), Extensions::default());
        assert_eq!(of("permessage-deflate"), deflate(false, false));
        let value = "Permessage-Deflate; server_max_window_bits=12; Client_No_Context_Takeover";
        assert_eq!(of(value), deflate(false, true));
        assert_eq!(of("permessage-deflate;server_no_context_takeover ; client_max_window_bits"), deflate(true, false));
    }

    #[test]
    fn other_extensions_are_unknown() {
        assert_eq!(of("x-webkit-deflate-frame"), Extensions::Unknown);
        assert_eq!(of("permessage-deflate, x-other; a=b"), Extensions::Unknown);
        assert_eq!(of("permessage-deflate, permessage-deflate"), Extensions::Unknown);
    }
}
