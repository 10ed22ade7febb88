//! The settings of the listener for beanstalkd's protocol, which has no tokens.

use std::path::PathBuf;

use super::{ConfigError, Listen, Options};
use crate::auth::Prefixes;
use crate::beanstalk::SocketMode;

/// Authorization over beanstalkd's protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeanstalkSettings {
    /// Prefixes of the queues that its clients may use; `None`: all.
    pub queues: Option<Prefixes>,
    /// The authority of client certificates; with it the listener uses TLS.
    pub client_ca: Option<PathBuf>,
    /// The permissions of a socket file.
    pub socket_mode: SocketMode,
}

impl BeanstalkSettings {
    /// The address of the listener and its permitted clients. If HTTP requires tokens, this listener, which has none,
    /// is started only if the options name its address.
    ///
    /// # Errors
    /// An option belongs to another kind of listener.
    pub(super) fn of(options: &mut Options) -> Result<(Listen, BeanstalkSettings), ConfigError> {
        let listen = options.beanstalk.take().unwrap_or_else(|| match options.tokens {
            Some(_) => Listen::Off,
            None => Listen::At("127.0.0.1:11300".into()),
        });
        let (is_unix, is_tcp) = (matches!(listen, Listen::Unix(_)), matches!(listen, Listen::At(_)));
        if options.beanstalk_client_ca.is_some() {
            if options.tls_cert.is_none() {
                let what = "--beanstalk-client-ca needs --tls-cert and --tls-key, too";
                return Err(ConfigError::Value(what.into()));
            }
            if !is_tcp {
                let what = "--beanstalk-client-ca is for --beanstalk HOST:PORT; TLS is not for sockets in the file system";
                return Err(ConfigError::Value(what.into()));
            }
        }
        if options.beanstalk_socket_mode.is_some() && !is_unix {
            return Err(ConfigError::Value("--beanstalk-socket-mode is for --beanstalk unix:PATH".into()));
        }
        let settings = BeanstalkSettings {
            queues: options.beanstalk_queues.take(),
            client_ca: options.beanstalk_client_ca.take(),
            socket_mode: options.beanstalk_socket_mode.take().unwrap_or_default(),
        };
        Ok((listen, settings))
    }
}
