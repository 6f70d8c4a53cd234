"""Kubelet's part in device plugins: they register, pods are given devices, others ask who has which.

Built from exchanges that were recorded from kubelet 1.36, and from `pkg/kubelet/cm/devicemanager`; real gRPC
over real Unix sockets. The policy for NUMA nodes is `none`. If kubelet goes through a set, in an order that
changes from run to run, this draws an order.

    async with running_device_manager(DeviceManagerConfig(plugin_dir=..., pod_resources=...)) as manager:
        await manager.wait_for(lambda: manager.capacity())  # a plugin has registered
        await manager.admit(pod)
        given = await manager.prepare(pod, "main")
"""
