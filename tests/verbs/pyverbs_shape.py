"""What pyverbs offers: written down from rdma-core 691953d, directory `pyverbs`.

Named constants of defaults are replaced by their numbers. Left out: what needs device
memory, a device's allocator, dma-bufs, counters or tag matching beyond the name.
"""

SIGNATURES = """
addr.GID.__init__(val=None)
addr.GRH.__init__(sgid=None, dgid=None, version_tclass_flow=0, paylen=0, next_hdr=0,
    hop_limit=1)
addr.GlobalRoute.__init__(dgid=None, flow_label=0, sgid_index=0, hop_limit=1, traffic_class=0)
addr.AHAttr.__init__(dlid=0, sl=0, src_path_bits=0, static_rate=0, is_global=0, port_num=1,
    gr=None)
addr.AH.__init__(pd, **kwargs)
addr.AH.close()
base.inc_rkey(rkey)
base.PyverbsRDMAErrno(msg)
base.PyverbsObject.set_log_level(val)
base.PyverbsCM.close()
cq.CompChannel.__init__(context)
cq.CompChannel.close()
cq.CompChannel.get_cq_event(expected_cq)
cq.CQ.__init__(context, cqe, cq_context=None, channel=None, comp_vector=0)
cq.CQ.close()
cq.CQ.resize(cqe)
cq.CQ.poll(num_entries=1)
cq.CQ.req_notify(solicited_only=False)
cq.CQ.ack_events(num_events)
cq.CqInitAttrEx.__init__(cqe=100, channel=None, comp_vector=0, wc_flags=0, comp_mask=0,
    flags=0, parent_domain=None)
cq.CQEX.__init__(context, init_attr)
cq.CQEX.close()
cq.CQEX.start_poll(attr)
cq.CQEX.poll_next()
cq.CQEX.end_poll()
cq.CQEX.read_opcode()
cq.CQEX.read_vendor_err()
cq.CQEX.read_byte_len()
cq.CQEX.read_imm_data()
cq.CQEX.read_qp_num()
cq.CQEX.read_src_qp()
cq.CQEX.read_wc_flags()
cq.CQEX.read_slid()
cq.CQEX.read_sl()
cq.CQEX.read_dlid_path_bits()
cq.CQEX.read_timestamp()
cq.CQEX.read_cvlan()
cq.CQEX.read_flow_tag()
cq.CQEX.read_tm_info()
cq.CQEX.read_completion_wallclock_ns()
cq.WC.__init__(wr_id=0, status=0, opcode=0, vendor_err=0, byte_len=0, qp_num=0, src_qp=0,
    imm_data=0, wc_flags=0, pkey_index=0, slid=0, sl=0, dlid_path_bits=0)
cq.cqe_status_to_str(status)
cq.cqe_opcode_to_str(opcode)
cq.flags_to_str(flags, dictionary)
cq.cqe_flags_to_str(flags)
cq.create_wc_flags_to_str(flags)
device.Device.__init__(name, guid, node_type, transport_type, index)
device.Context.__init__(**kwargs)
device.Context.close()
device.Context.query_device()
device.Context.query_device_ex(ex_input=None)
device.Context.query_comp_cntr_caps()
device.Context.query_pkey(port_num, index)
device.Context.get_pkey_index(port_num, pkey)
device.Context.query_gid(port_num, index)
device.Context.query_gid_type(port_num, index)
device.Context.query_port(port_num)
device.Context.query_port_speed(port_num)
device.Context.query_gid_table(max_entries, flags=0)
device.Context.query_gid_ex(port_num, gid_index, flags=0)
device.Context.query_rt_values_ex(comp_mask=1)
device.Context.get_async_event()
device.QueryDeviceExInput.__init__(comp_mask)
device.AllocDmAttr.__init__(length, log_align_req=0, comp_mask=0)
device.DM.__init__(context, dm_attr=None, **kwargs)
device.GIDEntry.__init__(subnet_prefix=0, interface_id=0, gid_index=0, port_num=0, gid_type=0,
    ndev_ifindex=0)
device.GIDEntry.gid_str()
device.AsyncEvent.__init__(event_type=0)
device.AsyncEvent.ack()
device.translate_gid_type(gid_type)
device.guid_format(num)
device.translate_transport_type(transport_type)
device.translate_node_type(node_type)
device.guid_to_hex(node_guid)
device.port_state_to_str(port_state)
device.translate_mtu(mtu)
device.translate_link_layer(ll)
device.translate_port_cap_flags(flags)
device.translate_port_cap_flags2(flags)
device.translate_device_caps(flags)
device.str_from_flags(flags, dictionary)
device.phys_state_to_str(phys)
device.width_to_str(width)
device.speed_to_str(active_speed, active_speed_ex)
device.get_device_list()
device.rdma_get_devices()
device.translate_event_type(event_type)
device.FdArr.__init__(arr=None, count=0)
device.FdArr.close()
fork.fork_init()
fork.is_fork_initialized()
mem_alloc.mmap(addr=0, length=100, prot=3, flags=34, fd=0, offset=0)
mem_alloc.madvise(addr, length, flags=4)
mem_alloc.munmap(addr, length)
mem_alloc.malloc(size)
mem_alloc.posix_memalign(size, alignment=8)
mem_alloc.free(ptr)
mem_alloc.writebe32(addr, val, offset=0)
mem_alloc.writebe64(addr, val, offset=0)
mem_alloc.write(addr, data, length, offset=0)
mem_alloc.read32(addr, offset=0)
mem_alloc.read64(addr, offset=0)
mem_alloc.read(addr, length, offset=0)
mr.MR.__init__(creator, length=0, access=0, address=None, implicit=False, **kwargs)
mr.MR.unimport()
mr.MR.close()
mr.MR.write(data, length, offset=0)
mr.MR.read(length, offset)
mr.MR.rereg(flags, pd=None, addr=0, length=0, access=0)
mr.MWBindInfo.__init__(mr, addr, length, mw_access_flags)
mr.MWBind.__init__(info, send_flags, wr_id=0)
mr.MW.__init__(pd, mw_type)
mr.MW.close()
mr.DMMR.__init__(pd, length, access, dm, offset)
mr.DMMR.write(data, length, offset=0)
mr.DMMR.read(length, offset)
mr.DmaBufMR.__init__(pd, length, access, dmabuf=None, offset=0, gpu=0, gtt=0)
mr.DmaBufMR.close()
mr.DmaBufMR.write(data, length, offset=0)
mr.DmaBufMR.read(length, offset)
mr.DmaHandleInitAttr.__init__(comp_mask=0, cpu_id=0, ph=0, tph_mem_type=0)
mr.DMAHandle.__init__(ctx, init_attr)
mr.DMAHandle.close()
mr.mwtype2str(mw_type)
mr.MREx.__init__(pd, length=0, access=0, address=None, iova=None, fd=None, fd_offset=0,
    dmah=None, implicit=False, buf=None, **kwargs)
mr.Buf.__init__(pd, size)
mr.Buf.close()
mr.BufMR.__init__(pd, buf, length=0, access=0, offset=0)
pd.PD.__init__(creator, **kwargs)
pd.PD.advise_mr(advise, flags, sg_list)
pd.PD.unimport()
pd.PD.close()
pd.ParentDomainContext.__init__(pd, alloc_func, free_func, user_data=None)
pd.ParentDomainInitAttr.__init__(pd, pd_context=None, comp_mask=0)
pd.ParentDomain.__init__(context, attr)
pd.ParentDomain.close()
pyverbs_error.PyverbsError.__init__(msg, error_code=-1)
pyverbs_error.PyverbsRDMAError.__init__(msg, error_code=-1)
pyverbs_error.PyverbsUserError.__init__(msg)
qp.QPCap.__init__(max_send_wr=1, max_recv_wr=10, max_send_sge=1, max_recv_sge=1,
    max_inline_data=0)
qp.QPInitAttr.__init__(qp_type=4, qp_context=None, scq=None, rcq=None, srq=None, cap=None,
    sq_sig_all=1)
qp.QPInitAttrEx.__init__(qp_type=4, qp_context=None, scq=None, rcq=None, srq=None, cap=None,
    sq_sig_all=0, comp_mask=0, pd=None, xrcd=None, create_flags=0, max_tso_header=0, source_qpn=0,
    hash_conf=None, ind_table=None, send_ops_flags=0)
qp.QPInitAttrEx.mask_to_str(mask)
qp.QPInitAttrEx.flags_to_str(flags)
qp.QPAttr.__init__(qp_state=1, cur_qp_state=0, port_num=1, path_mtu=3)
qp.ECE.__init__(vendor_id=0, options=0, comp_mask=0)
qp.QPRateLimitAttr.__init__(rate_limit=0, max_burst_sz=0, typical_pkt_sz=0, comp_mask=0)
qp.QPAttachCompCntrAttr.__init__(op_mask=0)
qp.QP.__init__(creator, init_attr, qp_attr=None)
qp.QP.close()
qp.QP.to_init(qp_attr)
qp.QP.to_rtr(qp_attr)
qp.QP.to_rts(qp_attr)
qp.QP.query(attr_mask)
qp.QP.modify(qp_attr, comp_mask)
qp.QP.modify_rate_limit(attr)
qp.QP.attach_comp_cntr(comp_cntr, attr)
qp.QP.post_recv(wr, bad_wr=None)
qp.QP.post_send(wr, bad_wr=None)
qp.QP.set_ece(ece)
qp.QP.query_ece()
qp.QP.bind_mw(mw, mw_bind)
qp.QP.query_data_in_order(op, flags=0)
qp.DataBuffer.__init__(addr, length)
qp.QPEx.__init__(creator, init_attr, qp_attr=None)
qp.QPEx.wr_atomic_cmp_swp(rkey, remote_addr, compare, swap)
qp.QPEx.wr_atomic_fetch_add(rkey, remote_addr, add)
qp.QPEx.wr_bind_mw(mw, rkey, bind_info)
qp.QPEx.wr_local_inv(invalidate_rkey)
qp.QPEx.wr_atomic_write(rkey, remote_addr, atomic_wr)
qp.QPEx.wr_rdma_read(rkey, remote_addr)
qp.QPEx.wr_rdma_write(rkey, remote_addr)
qp.QPEx.wr_rdma_write_imm(rkey, remote_addr, data)
qp.QPEx.wr_flush(rkey, remote_addr, length, ptype, level)
qp.QPEx.wr_send()
qp.QPEx.wr_send_imm(data)
qp.QPEx.wr_send_inv(invalidate_rkey)
qp.QPEx.wr_send_tso(hdr, hdr_sz, mss)
qp.QPEx.wr_set_ud_addr(ah, remote_qpn, remote_rkey)
qp.QPEx.wr_set_xrc_srqn(remote_srqn)
qp.QPEx.wr_set_inline_data(addr, length)
qp.QPEx.wr_set_inline_data_list(num_buf, buf_list)
qp.QPEx.wr_set_sge(sge)
qp.QPEx.wr_set_sge_list(num_sge, sg_list)
qp.QPEx.wr_start()
qp.QPEx.wr_complete()
qp.QPEx.wr_abort()
srq.SrqAttr.__init__(max_wr=100, max_sge=1, srq_limit=0)
srq.SrqInitAttr.__init__(attr=None)
srq.SrqInitAttrEx.__init__(max_wr=100, max_sge=1, srq_limit=0)
srq.OpsWr.close()
srq.SRQ.__init__(creator, attr)
srq.SRQ.close()
srq.SRQ.get_srq_num()
srq.SRQ.modify(attr, comp_mask)
srq.SRQ.query()
srq.SRQ.post_srq_ops(wr, bad_wr=None)
srq.SRQ.post_recv(wr, bad_wr=None)
utils.gid_str(subnet_prefix, interface_id)
utils.gid_str_to_array(val)
utils.qp_type_to_str(qp_type)
utils.qp_state_to_str(qp_state)
utils.mtu_to_str(mtu)
utils.access_flags_to_str(flags)
utils.mig_state_to_str(mig)
utils.rereg_error_to_str(error)
wr.SGE.__init__(addr, length, lkey)
wr.SGE.close()
wr.SGE.read(length, offset)
wr.RecvWR.__init__(wr_id=0, num_sge=0, sg=None, next_wr=None)
wr.RecvWR.close()
wr.SendWR.__init__(wr_id=0, opcode=2, num_sge=0, imm_data=0, sg=None, send_flags=2,
    next_wr=None)
wr.SendWR.close()
wr.SendWR.set_wr_ud(ah, rqpn, rqkey)
wr.SendWR.set_wr_rdma(rkey, addr)
wr.SendWR.set_wr_atomic(rkey, addr, compare_add, swap=0)
wr.SendWR.set_bind_wr(mw, bind_info)
wr.SendWR.set_qp_type_xrc(remote_srqn)
wr.send_flags_to_str(flags)
xrcd.XRCDInitAttr.__init__(comp_mask, oflags, fd)
xrcd.XRCD.__init__(context, init_attr)
xrcd.XRCD.close()
"""

ATTRIBUTES = """
addr.GID: gid
addr.GRH: dgid sgid version_tclass_flow paylen next_hdr hop_limit
addr.GlobalRoute: dgid flow_label sgid_index hop_limit traffic_class
addr.AHAttr: port_num sl src_path_bits dlid static_rate is_global dgid flow_label sgid_index
    hop_limit traffic_class
cq.CompChannel: fd
cq.CQ: comp_channel cqe cq
cq.CqInitAttrEx: cqe parent_domain comp_channel comp_vector wc_flags comp_mask flags
cq.CQEX: status wr_id
cq.WC: wr_id status opcode vendor_err byte_len qp_num src_qp wc_flags pkey_index slid sl
    imm_data dlid_path_bits
cq.PollCqAttr: comp_mask
cq.WcTmInfo: tag priv
device.Device: name node_type transport_type guid index
device.Context: context num_comp_vectors cmd_fd name
device.DeviceAttr: fw_version node_guid sys_image_guid max_mr_size page_size_cap vendor_id
    vendor_part_id hw_ver max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe
    max_mr max_pd max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom
    max_ee_init_rd_atom atomic_caps max_ee max_rdd max_mw max_raw_ipv6_qps max_raw_ethy_qp
    max_mcast_grp max_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr
    max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt
device.ODPCaps: general_caps rc_odp_caps uc_odp_caps ud_odp_caps xrc_odp_caps
device.PCIAtomicCaps: fetch_add swap compare_swap
device.TSOCaps: max_tso supported_qpts
device.RSSCaps: supported_qpts max_rwq_indirection_tables rx_hash_fields_mask rx_hash_function
    max_rwq_indirection_table_size
device.PacketPacingCaps: qp_rate_limit_min qp_rate_limit_max supported_qpts
device.TMCaps: max_rndv_hdr_size max_num_tags flags max_ops max_sge
device.CQModerationCaps: max_cq_count max_cq_period
device.DeviceAttrEx: orig_attr comp_mask odp_caps completion_timestamp_mask hca_core_clock
    device_cap_flags_ex tso_caps pci_atomic_caps rss_caps max_wq_type_rq packet_pacing_caps
    raw_packet_caps tm_caps cq_mod_caps max_dm_size phys_port_cnt_ex
device.AllocDmAttr: length log_align_req comp_mask
device.PortAttr: state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr
    qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply
    active_width active_speed phys_state link_layer flags port_cap_flags2 active_speed_ex
device.GIDEntry: gid_subnet_prefix gid_interface_id gid_index port_num gid_type ndev_ifindex
device.AsyncEvent: event_type
device.FdArr: arr count
mr.MR: buf lkey rkey length handle
mr.MWBindInfo: mw_access_flags length addr
mr.MW: handle rkey type
mr.DmaHandleInitAttr: comp_mask cpu_id ph tph_mem_type
pd.PD: handle pd
pd.ParentDomainContext: user_data
pd.ParentDomainInitAttr: comp_mask
pyverbs_error.PyverbsRDMAError: error_code
qp.QPCap: max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
qp.QPInitAttr: send_cq srq recv_cq cap qp_type sq_sig_all max_send_wr max_recv_wr max_send_sge
    max_recv_sge max_inline_data
qp.QPInitAttrEx: send_cq recv_cq cap qp_type sq_sig_all comp_mask pd xrcd srq create_flags
    max_tso_header source_qpn max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
    ind_table
qp.QPAttr: qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
    qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify
    sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
    rnr_retry alt_port_num alt_timeout rate_limit
qp.ECE: vendor_id options comp_mask
qp.QPRateLimitAttr: rate_limit max_burst_sz typical_pkt_sz comp_mask
qp.QPAttachCompCntrAttr: op_mask
qp.QP: qp_type qp_state qp_num qp
qp.QPEx: comp_mask wr_id wr_flags ind_table
srq.SrqAttr: max_wr max_sge srq_limit
srq.SrqInitAttr: max_wr max_sge srq_limit
srq.SrqInitAttrEx: max_wr max_sge srq_limit comp_mask srq_type pd xrcd max_num_tags max_ops cq
srq.SRQ: srq
wr.SGE: addr length lkey
wr.RecvWR: next_wr wr_id num_sge sg_list
wr.SendWR: next_wr wr_id num_sge imm_data opcode send_flags sg_list rkey rdma_remote_addr
    rdma_rkey
xrcd.XRCDInitAttr: fd comp_mask oflags
"""
