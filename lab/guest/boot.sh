# shellcheck shell=bash
# Goes on where init ends: file systems, modules, the host's folders, the disk; then the agent.
export PYTHONPATH=/opt/site
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
mount -t debugfs none /sys/kernel/debug
ip link set lo up
modprobe -a virtio_pci virtio_console 9pnet_virtio 9p igb igbvf
# With two NUMA nodes either card may be found first; the first one's address ends in 01.
if [[ $(</sys/class/net/eth0/address) == *:02 ]]; then
  ip link set eth0 name other
  ip link set eth1 name eth0
  ip link set other name eth1
fi
host=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$host" lab /lab
mount -t 9p -o "ro,cache=loose,$host" src /src
if grep -qw lab.disk /proc/cmdline; then
  modprobe -a virtio_blk ext4
  blkid /dev/vda >/dev/null || mke2fs -q -t ext4 /dev/vda
  mount /dev/vda /disk
fi
hostname "$(sed -n 's/.*lab\.name=\([a-z0-9-]*\).*/\1/p' /proc/cmdline)"
numvfs=$(sed -n 's/.*lab\.vfs=\([0-9]*\).*/\1/p' /proc/cmdline)
if ((numvfs)); then
  lab-sriov "$numvfs"
fi
exec python3 -ISE /opt/lab/agent.py
