//! Sizes, offsets and constants against the C header of the machine.
//!
//! The same table makes the Rust side, by `offset_of!`, and a C program that prints its own.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use rdma_core_sys as sys;

/// What to compare.
#[derive(Default)]
struct Table {
    /// Statements of the C program, one per fact.
    c: String,
    /// What it has to print.
    expected: Vec<String>,
}

impl Table {
    fn fact(&mut self, what: &str, c_expression: &str, value: u64) {
        let quoted = what.replace('"', "\\\"");
        writeln!(
            self.c,
            "    printf(\"{quoted} %llu\\n\", (unsigned long long)({c_expression}));"
        )
        .expect("a string takes everything");
        self.expected.push(format!("{what} {value}"));
    }
}

/// Whether the whole struct is given, or only its beginning.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Beginning,
}

macro_rules! layout {
    ($table:ident, $extent:ident $name:ident { $($($field:ident).+ $(= $c:literal)?),+ $(,)? }) => {
        if Extent::$extent == Extent::Whole {
            let size = size_of::<sys::$name>() as u64;
            let of = concat!("sizeof(struct ", stringify!($name), ")");
            $table.fact(of, of, size);
            let align = align_of::<sys::$name>() as u64;
            let of = concat!("_Alignof(struct ", stringify!($name), ")");
            $table.fact(of, of, align);
        }
        $({
            let path = stringify!($($field).+).replace(' ', "");
            let c_path = [$($c,)? path.as_str()][0].to_owned();
            let offset = core::mem::offset_of!(sys::$name, $($field).+) as u64;
            let of = format!("offsetof(struct {}, {c_path})", stringify!($name));
            $table.fact(&of, &of, offset);
        })+
    };
}

macro_rules! constants {
    ($table:ident, $($name:ident),+ $(,)?) => {
        $($table.fact(stringify!($name), stringify!($name), u64::from(sys::$name));)+
    };
}

fn attributes(table: &mut Table) {
    layout!(table, Whole ibv_device_attr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
        hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
        max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
        max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
        max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
        max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt,
    });
    layout!(table, Whole ibv_port_attr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
        qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
        init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
        port_cap_flags2,
    });
    layout!(table, Whole ibv_gid_entry { gid, gid.raw, gid_index, port_num, gid_type, ndev_ifindex });
    layout!(table, Whole ibv_qp_cap {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
    });
    layout!(table, Whole ibv_qp_init_attr {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
    });
    layout!(table, Whole ibv_global_route {
        dgid, flow_label, sgid_index, hop_limit, traffic_class,
    });
    layout!(table, Whole ibv_ah_attr {
        grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
    });
    layout!(table, Whole ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
    });
}

fn objects(table: &mut Table) {
    layout!(table, Whole ibv_mr { context, pd, addr, length, handle, lkey, rkey });
    layout!(table, Beginning ibv_comp_channel { context, fd });
    layout!(table, Beginning ibv_cq { context, channel, cq_context, handle, cqe });
    layout!(table, Beginning ibv_qp {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
    });
    layout!(table, Beginning ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors });
    layout!(table, Whole ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv });
}

fn work(table: &mut Table) {
    layout!(table, Whole ibv_sge { addr, length, lkey });
    layout!(table, Whole ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data,
        wr.remote_addr = "wr.rdma.remote_addr", wr.rkey = "wr.rdma.rkey",
    });
    layout!(table, Whole ibv_recv_wr { wr_id, next, sg_list, num_sge });
    layout!(table, Whole ibv_wc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
        pkey_index, slid, sl, dlid_path_bits,
    });
    layout!(table, Whole ibv_async_event { element, event_type });
}

fn numbers(table: &mut Table) {
    constants!(
        table,
        IBV_GID_TYPE_IB,
        IBV_GID_TYPE_ROCE_V1,
        IBV_GID_TYPE_ROCE_V2,
        IBV_MTU_256,
        IBV_MTU_512,
        IBV_MTU_1024,
        IBV_MTU_2048,
        IBV_MTU_4096,
        IBV_PORT_NOP,
        IBV_PORT_DOWN,
        IBV_PORT_INIT,
        IBV_PORT_ARMED,
        IBV_PORT_ACTIVE,
        IBV_PORT_ACTIVE_DEFER,
        IBV_LINK_LAYER_UNSPECIFIED,
        IBV_LINK_LAYER_INFINIBAND,
        IBV_LINK_LAYER_ETHERNET,
    );
    constants!(
        table,
        IBV_EVENT_CQ_ERR,
        IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_REQ_ERR,
        IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST,
        IBV_EVENT_SQ_DRAINED,
        IBV_EVENT_PATH_MIG,
        IBV_EVENT_PATH_MIG_ERR,
        IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE,
        IBV_EVENT_PORT_ERR,
        IBV_EVENT_LID_CHANGE,
        IBV_EVENT_PKEY_CHANGE,
        IBV_EVENT_SM_CHANGE,
        IBV_EVENT_SRQ_ERR,
        IBV_EVENT_SRQ_LIMIT_REACHED,
        IBV_EVENT_QP_LAST_WQE_REACHED,
        IBV_EVENT_CLIENT_REREGISTER,
        IBV_EVENT_GID_CHANGE,
        IBV_EVENT_WQ_FATAL,
    );
}

fn numbers_of_work(table: &mut Table) {
    constants!(
        table,
        IBV_WC_SUCCESS,
        IBV_WC_LOC_LEN_ERR,
        IBV_WC_LOC_QP_OP_ERR,
        IBV_WC_LOC_EEC_OP_ERR,
        IBV_WC_LOC_PROT_ERR,
        IBV_WC_WR_FLUSH_ERR,
        IBV_WC_MW_BIND_ERR,
        IBV_WC_BAD_RESP_ERR,
        IBV_WC_LOC_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_OP_ERR,
        IBV_WC_RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_LOC_RDD_VIOL_ERR,
        IBV_WC_REM_INV_RD_REQ_ERR,
        IBV_WC_REM_ABORT_ERR,
        IBV_WC_INV_EECN_ERR,
        IBV_WC_INV_EEC_STATE_ERR,
        IBV_WC_FATAL_ERR,
        IBV_WC_RESP_TIMEOUT_ERR,
        IBV_WC_GENERAL_ERR,
        IBV_WC_TM_ERR,
        IBV_WC_TM_RNDV_INCOMPLETE,
        IBV_WC_SEND,
        IBV_WC_RDMA_WRITE,
        IBV_WC_RECV,
        IBV_WC_RECV_RDMA_WITH_IMM,
        IBV_WC_WITH_IMM,
    );
    constants!(
        table,
        IBV_ACCESS_LOCAL_WRITE,
        IBV_ACCESS_REMOTE_WRITE,
        IBV_QPT_RC,
        IBV_QP_STATE,
        IBV_QP_ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX,
        IBV_QP_PORT,
        IBV_QP_AV,
        IBV_QP_PATH_MTU,
        IBV_QP_TIMEOUT,
        IBV_QP_RETRY_CNT,
        IBV_QP_RNR_RETRY,
        IBV_QP_RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER,
        IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC,
        IBV_QP_DEST_QPN,
        IBV_QPS_RESET,
        IBV_QPS_INIT,
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        IBV_QPS_ERR,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_SEND,
        IBV_SEND_SIGNALED,
        IBV_SEND_SOLICITED,
        IBV_SEND_INLINE,
    );
}

/// Runs a program and gives what it printed, or why it could not.
fn output(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> Result<String, String> {
    let program = program.as_ref();
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} failed: {said}", program.display()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn compile_and_run(folder: &Path, source: &str) -> Result<String, String> {
    let (c, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&c, source).map_err(|error| format!("cannot write {}: {error}", c.display()))?;
    let arguments = ["-std=gnu11", "-o"].map(OsStr::new);
    output(
        "cc",
        &[
            arguments[0],
            arguments[1],
            binary.as_os_str(),
            c.as_os_str(),
        ],
    )?;
    output(binary, &[])
}

mod needs_verbs_header {
    use super::*;

    #[test]
    fn structs_and_constants_are_those_of_the_c_header() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let includes = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n";
        let probe = format!("{includes}int main(void) {{ return 0; }}\n");
        if let Err(cause) = compile_and_run(folder.path(), &probe) {
            let cure = "install a C compiler and the header (Debian: gcc libibverbs-dev)";
            assert!(
                std::env::var_os("CI").is_none(),
                "cannot compare with infiniband/verbs.h: {cure}\n{cause}"
            );
            eprintln!("skipped: there is no infiniband/verbs.h to compare with: {cure}\n{cause}");
            return;
        }
        let mut table = Table::default();
        attributes(&mut table);
        objects(&mut table);
        work(&mut table);
        numbers(&mut table);
        numbers_of_work(&mut table);
        let source = format!(
            "{includes}int main(void) {{\n{}    return 0;\n}}\n",
            table.c
        );
        let printed = compile_and_run(folder.path(), &source).expect("the header lacks something");
        let printed: Vec<&str> = printed.lines().collect();
        let wrong: Vec<String> = printed
            .iter()
            .zip(&table.expected)
            .filter(|(c, rust)| c != rust)
            .map(|(c, rust)| format!("C says {c}, Rust says {rust}"))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert_eq!(printed.len(), table.expected.len());
        println!("{} facts are as in C", printed.len());
    }
}
