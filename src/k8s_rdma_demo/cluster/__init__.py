"""The parts of Kubernetes that a test machine lacks, each over real sockets and each its own process.

An API server with pods, nodes, events, leases, roles and custom resources (`api`), a scheduler that talks
to an extender as kube-scheduler does and allocates ResourceClaims (`scheduler`), the controller of these
(`controllers`), and a kubelet with a container runtime that calls CNI plugins as containerd does (`kubelet`).
They behave as real Kubernetes 1.36 and containerd 2.1 were seen to do, in the same words, and the scenarios
of `tests/cluster` run on both. Features that this project never meets (admission by policy, probes, images)
are left out.

    python -m k8s_rdma_demo.cluster api|scheduler|controllers|kubelet --help

In a test, in one event loop:

    async with serving_api() as api, scheduling(api.url, SchedulerConfig(extenders=(...,))):
        async with running_kubelet(api.url, KubeletConfig(node="w1", ...)) as kubelet:
            ...
"""
