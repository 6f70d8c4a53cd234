"""Which pod is being admitted, by kubelet's report of all pods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.deviceplugin.topology import ADMISSION_WINDOW_S, AdmittedPodGuess

RDMA = "tencent.com/rdma"
GPU = "nvidia.com/gpu"
OURS = frozenset({RDMA, "k8s-rdma.io/slot"})


def pod(name, *devices):
    held = tuple(
        ContainerDevices(container="app", resource=resource, ids=(each,)) for resource, each in devices
    )
    return PodDevices(namespace="default", name=name, devices=held)


def after(*old):
    newcomers = AdmittedPodGuess(OURS)
    newcomers.update(old or (pod("other"),), 0)
    return newcomers


def test_pod_that_has_got_a_gpu_since_the_last_look_is_being_admitted():
    old = pod("old", (GPU, "g0"))
    assert after(old).admitted([old, pod("new", (GPU, "g1"))], RDMA, 5) == ((GPU, "g1"),)


def test_pod_without_gpus_does_not_get_those_of_others():
    old = pod("old", (GPU, "g0"))
    assert after(old).admitted([old, pod("new")], RDMA, 5) == ()


def test_no_pod_is_inferred_from_the_first_look():
    assert AdmittedPodGuess(OURS).admitted([pod("some", (GPU, "g0"))], RDMA, 0) == ()


def test_no_pod_is_inferred_if_several_pods_have_come():
    assert after().admitted([pod("a", (GPU, "g0")), pod("b", (GPU, "g1"))], RDMA, 5) == ()


def test_pod_that_has_its_devices_already_is_not_the_one_that_asks():
    served = pod("a", (GPU, "g0"), (RDMA, "mlx5_0"))
    assert after().admitted([served, pod("b", (GPU, "g1"))], RDMA, 5) == ((GPU, "g1"),)


def test_pod_gets_its_gpus_again_for_its_second_container():
    newcomers = after()
    assert newcomers.admitted([pod("a", (GPU, "g0"))], RDMA, 5) == ((GPU, "g0"),)
    again = pod("a", (GPU, "g0"), (RDMA, "mlx5_0"))
    assert newcomers.admitted([again], RDMA, 5 + ADMISSION_WINDOW_S / 2) == ((GPU, "g0"),)


def test_new_pod_without_gpus_does_not_get_those_of_a_complete_pod():
    newcomers = after()
    newcomers.update([pod("a", (GPU, "g0"))], 5)
    served = pod("a", (GPU, "g0"), (RDMA, "mlx5_0"))
    assert newcomers.admitted([served, pod("b")], RDMA, 5 + ADMISSION_WINDOW_S / 2) == ()


def test_pod_with_gpus_is_meant_rather_than_one_without_any_devices():
    assert after().admitted([pod("a"), pod("b", (GPU, "g1"))], RDMA, 5) == ((GPU, "g1"),)


def test_pod_that_was_admitted_a_while_ago_is_not_being_admitted():
    newcomers = after()
    newcomers.update([pod("a", (GPU, "g0"))], 5)
    assert newcomers.admitted([pod("a", (GPU, "g0"))], RDMA, 5 + 2 * ADMISSION_WINDOW_S) == ()


def test_our_own_resources_make_no_pod_new():
    assert after().admitted([pod("a", ("k8s-rdma.io/slot", "slot-0"))], RDMA, 5) == ()


def test_kubelet_that_has_just_started_does_not_make_all_pods_new():
    old = pod("old", (GPU, "g0"))
    newcomers = after(old)
    newcomers.update((), 3)
    assert newcomers.admitted([old], RDMA, 4) == ()


def test_pod_of_the_same_name_with_another_gpu_is_new():
    assert after(pod("a", (GPU, "g0"))).admitted([pod("a", (GPU, "g1"))], RDMA, 5) == ((GPU, "g1"),)


PODS = st.lists(
    st.builds(
        lambda name, gpus, rdma: pod(name, *((GPU, each) for each in gpus), *([(RDMA, "m")] if rdma else [])),
        st.sampled_from("abcd"),
        st.frozensets(st.sampled_from(["g0", "g1", "g2"])),
        st.booleans(),
    ),
    unique_by=lambda each: each.name,
)


@given(st.lists(PODS, min_size=1, max_size=6))
def test_inferred_devices_all_belong_to_one_present_pod(looks):
    newcomers = AdmittedPodGuess(OURS)
    for now, pods in enumerate(looks):
        told = newcomers.admitted(pods, RDMA, now)
        assert not told or any(set(told) <= {(GPU, each) for each in pod.device_ids(GPU)} for pod in pods)
