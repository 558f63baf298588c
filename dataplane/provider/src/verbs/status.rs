//! What the numbers of an adapter mean.

use rdma_core_sys as sys;

use crate::{DeviceEvent, QpErrorCause, WcStatus};

/// How a request ended. Numbers that nobody knows are faults of the transport.
pub(super) fn wc_status(number: u32) -> WcStatus {
    match number {
        sys::IBV_WC_SUCCESS => WcStatus::Success,
        sys::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        sys::IBV_WC_LOC_PROT_ERR | sys::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalProtection,
        sys::IBV_WC_WR_FLUSH_ERR => WcStatus::WrFlush,
        sys::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        sys::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        sys::IBV_WC_REM_OP_ERR | sys::IBV_WC_REM_ABORT_ERR => WcStatus::RemoteOperation,
        sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExceeded,
        sys::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        _ => WcStatus::General,
    }
}

/// The number's name, without its prefix.
fn wc_name(number: u32) -> &'static str {
    match number {
        sys::IBV_WC_SUCCESS => "SUCCESS",
        sys::IBV_WC_LOC_LEN_ERR => "LOC_LEN_ERR",
        sys::IBV_WC_LOC_QP_OP_ERR => "LOC_QP_OP_ERR",
        sys::IBV_WC_LOC_EEC_OP_ERR => "LOC_EEC_OP_ERR",
        sys::IBV_WC_LOC_PROT_ERR => "LOC_PROT_ERR",
        sys::IBV_WC_WR_FLUSH_ERR => "WR_FLUSH_ERR",
        sys::IBV_WC_MW_BIND_ERR => "MW_BIND_ERR",
        sys::IBV_WC_BAD_RESP_ERR => "BAD_RESP_ERR",
        sys::IBV_WC_LOC_ACCESS_ERR => "LOC_ACCESS_ERR",
        sys::IBV_WC_REM_INV_REQ_ERR => "REM_INV_REQ_ERR",
        sys::IBV_WC_REM_ACCESS_ERR => "REM_ACCESS_ERR",
        sys::IBV_WC_REM_OP_ERR => "REM_OP_ERR",
        sys::IBV_WC_RETRY_EXC_ERR => "RETRY_EXC_ERR",
        sys::IBV_WC_RNR_RETRY_EXC_ERR => "RNR_RETRY_EXC_ERR",
        sys::IBV_WC_REM_ABORT_ERR => "REM_ABORT_ERR",
        sys::IBV_WC_FATAL_ERR => "FATAL_ERR",
        sys::IBV_WC_RESP_TIMEOUT_ERR => "RESP_TIMEOUT_ERR",
        sys::IBV_WC_GENERAL_ERR => "GENERAL_ERR",
        _ => "unknown",
    }
}

/// Whose work reported a failure first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedWork {
    /// A SEND or WRITE of ours.
    Send,
    /// A receive of ours, with a message of the peer.
    Recv,
}

/// A failure of a queue pair as its first completion in error told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) qpn: u32,
    pub(super) work: FailedWork,
    /// The adapter's status.
    pub(super) status: u32,
    /// The maker's own number.
    pub(super) vendor_err: u32,
}

impl Failed {
    /// The same as news of the device: for link supervision, and for people.
    pub(super) fn events(self) -> [DeviceEvent; 2] {
        let Failed {
            qpn,
            work,
            status,
            vendor_err,
        } = self;
        let (cause, of) = match (work, wc_status(status)) {
            (FailedWork::Send, status) => (QpErrorCause::Requester(status), "a request"),
            // What the peer is told.
            (FailedWork::Recv, WcStatus::LocalLength) => {
                let told = WcStatus::RemoteInvalidRequest;
                (QpErrorCause::Responder(told), "a receive")
            }
            (FailedWork::Recv, _) => {
                let told = WcStatus::RemoteOperation;
                (QpErrorCause::Responder(told), "a receive")
            }
        };
        let name = wc_name(status);
        let what = format!(
            "queue pair {qpn:#08x} failed with {of}: IBV_WC_{name} ({status}), vendor error \
             {vendor_err:#x}"
        );
        [
            DeviceEvent::QpError { qpn, cause },
            DeviceEvent::Adapter { what },
        ]
    }
}

/// What an asynchronous event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// A queue pair, by its number.
    Qp(u32),
    /// A port, by its number.
    Port(u32),
    /// The device, or something that this driver does not use.
    Device,
}

/// What the type of an event says about what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubjectKind {
    Qp,
    Port,
    Device,
}

pub(super) fn subject_kind(event: u32) -> SubjectKind {
    match event {
        sys::IBV_EVENT_QP_FATAL
        | sys::IBV_EVENT_QP_REQ_ERR
        | sys::IBV_EVENT_QP_ACCESS_ERR
        | sys::IBV_EVENT_COMM_EST
        | sys::IBV_EVENT_SQ_DRAINED
        | sys::IBV_EVENT_PATH_MIG
        | sys::IBV_EVENT_PATH_MIG_ERR
        | sys::IBV_EVENT_QP_LAST_WQE_REACHED => SubjectKind::Qp,
        sys::IBV_EVENT_PORT_ACTIVE
        | sys::IBV_EVENT_PORT_ERR
        | sys::IBV_EVENT_LID_CHANGE
        | sys::IBV_EVENT_PKEY_CHANGE
        | sys::IBV_EVENT_SM_CHANGE
        | sys::IBV_EVENT_CLIENT_REREGISTER
        | sys::IBV_EVENT_GID_CHANGE => SubjectKind::Port,
        _ => SubjectKind::Device,
    }
}

/// The news in an asynchronous event; none if it is part of ordinary life.
pub(super) fn device_event(event: u32, subject: Subject) -> Option<DeviceEvent> {
    let adapter = |what: String| Some(DeviceEvent::Adapter { what });
    match (event, subject) {
        (sys::IBV_EVENT_QP_FATAL, Subject::Qp(qpn)) => Some(DeviceEvent::QpError {
            qpn,
            cause: QpErrorCause::Requester(WcStatus::General),
        }),
        (sys::IBV_EVENT_QP_REQ_ERR, Subject::Qp(qpn)) => Some(DeviceEvent::QpError {
            qpn,
            cause: QpErrorCause::Responder(WcStatus::RemoteInvalidRequest),
        }),
        (sys::IBV_EVENT_QP_ACCESS_ERR, Subject::Qp(qpn)) => Some(DeviceEvent::QpError {
            qpn,
            cause: QpErrorCause::Responder(WcStatus::RemoteAccess),
        }),
        // The first message before RTS, and the last receive of a queue pair in error.
        (_, Subject::Qp(_)) => None,
        (sys::IBV_EVENT_PORT_ACTIVE, Subject::Port(port)) => {
            adapter(format!("port {port} is active"))
        }
        (sys::IBV_EVENT_PORT_ERR, Subject::Port(port)) => adapter(format!("port {port} is down")),
        (sys::IBV_EVENT_GID_CHANGE, Subject::Port(port)) => {
            adapter(format!("the GID table of port {port} has changed"))
        }
        (number, Subject::Port(port)) => adapter(format!("event {number} at port {port}")),
        (sys::IBV_EVENT_CQ_ERR, Subject::Device) => adapter("a completion queue broke".to_owned()),
        (sys::IBV_EVENT_DEVICE_FATAL, Subject::Device) => {
            adapter("the device is broken".to_owned())
        }
        (number, Subject::Device) => adapter(format!("event {number}")),
    }
}

#[cfg(test)]
mod tests {
    use rdma_core_sys as sys;

    use super::{Failed, FailedWork, Subject, SubjectKind, device_event, subject_kind, wc_status};
    use crate::{DeviceEvent, QpErrorCause, WcStatus};

    #[test]
    fn every_status_of_a_reliable_connection_has_its_meaning() {
        let table = [
            (0, WcStatus::Success),
            (1, WcStatus::LocalLength),
            (2, WcStatus::General),
            (4, WcStatus::LocalProtection),
            (5, WcStatus::WrFlush),
            (7, WcStatus::General),
            (8, WcStatus::LocalProtection),
            (9, WcStatus::RemoteInvalidRequest),
            (10, WcStatus::RemoteAccess),
            (11, WcStatus::RemoteOperation),
            (12, WcStatus::RetryExceeded),
            (13, WcStatus::RnrRetryExceeded),
            (19, WcStatus::General),
            (20, WcStatus::RetryExceeded),
            (21, WcStatus::General),
            (4711, WcStatus::General),
        ];
        for (number, status) in table {
            assert_eq!(wc_status(number), status, "{number}");
        }
    }

    #[test]
    fn failure_is_told_with_the_makers_number() {
        let failed = Failed {
            qpn: 0x11,
            work: FailedWork::Send,
            status: sys::IBV_WC_RETRY_EXC_ERR,
            vendor_err: 0x81,
        };
        let [event, words] = failed.events();
        let cause = QpErrorCause::Requester(WcStatus::RetryExceeded);
        assert_eq!(event, DeviceEvent::QpError { qpn: 0x11, cause });
        let DeviceEvent::Adapter { what } = words else {
            panic!("{words:?}")
        };
        assert_eq!(
            what,
            "queue pair 0x000011 failed with a request: IBV_WC_RETRY_EXC_ERR (12), vendor error 0x81"
        );
    }

    #[test]
    fn failed_receive_is_what_the_peer_is_told() {
        let table = [
            (sys::IBV_WC_LOC_LEN_ERR, WcStatus::RemoteInvalidRequest),
            (sys::IBV_WC_LOC_PROT_ERR, WcStatus::RemoteOperation),
        ];
        for (status, told) in table {
            let failed = Failed {
                qpn: 0x12,
                work: FailedWork::Recv,
                status,
                vendor_err: 0,
            };
            let cause = QpErrorCause::Responder(told);
            assert_eq!(
                failed.events()[0],
                DeviceEvent::QpError { qpn: 0x12, cause }
            );
        }
    }

    #[test]
    fn refused_request_of_a_peer_names_the_queue_pair() {
        assert_eq!(subject_kind(sys::IBV_EVENT_QP_ACCESS_ERR), SubjectKind::Qp);
        let event = device_event(sys::IBV_EVENT_QP_ACCESS_ERR, Subject::Qp(7));
        let cause = QpErrorCause::Responder(WcStatus::RemoteAccess);
        assert_eq!(event, Some(DeviceEvent::QpError { qpn: 7, cause }));
    }

    #[test]
    fn ordinary_life_is_no_news() {
        assert_eq!(device_event(sys::IBV_EVENT_COMM_EST, Subject::Qp(7)), None);
        let last = device_event(sys::IBV_EVENT_QP_LAST_WQE_REACHED, Subject::Qp(7));
        assert_eq!(last, None);
    }

    #[test]
    fn port_and_device_events_are_told_in_words() {
        let table = [
            (sys::IBV_EVENT_PORT_ERR, Subject::Port(2), "port 2 is down"),
            (sys::IBV_EVENT_GID_CHANGE, Subject::Port(1), "GID table"),
            (sys::IBV_EVENT_DEVICE_FATAL, Subject::Device, "broken"),
            (99, Subject::Device, "event 99"),
        ];
        for (number, subject, part) in table {
            let Some(DeviceEvent::Adapter { what }) = device_event(number, subject) else {
                panic!("{number}")
            };
            assert!(what.contains(part), "{what}");
        }
    }
}
