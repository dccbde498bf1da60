#!/bin/busybox sh
# The init of the guest: loads the modules, then serves the commands of boot.py.
#
# Commands come in lines on a virtio-serial port, `run NUMBER SCRIPT` (in base64) and
# `kill NUMBER`; each script is answered once, when it has ended, by a line
# `NUMBER STATUS SIZE` and so many bytes of output.

export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/busybox HOME=/tmp
# What busybox has stands last in PATH, in for what no package brought.
/bin/busybox mkdir /busybox
/bin/busybox --install -s /busybox 2>/dev/null
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm /run/scripts
# Addresses are usable at once: duplicates cannot be, and the detection takes a second.
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
ulimit -l unlimited
ulimit -c 0
for module in virtio_pci virtio_console virtio_net rdma_rxe rdma_ucm; do
  modprobe "$module"
done
ip link set lo up

OUTPUT_LIMIT=16000000

run() {
  base=/run/scripts/$1
  echo "$2" | base64 -d >"$base"
  # A session of its own, so that `kill` reaches everything that the script started.
  setsid /bin/sh "$base" </dev/null >"$base.out" 2>&1 3>&- 4>&- &
  echo $! >"$base.pid"
  wait $!
  status=$?
  head -c $OUTPUT_LIMIT "$base.out" >"$base.answer"
  read -r _ <&4
  echo "$1 $status $(wc -c <"$base.answer")" >&3
  cat "$base.answer" >&3
  echo >&4
  rm -f "$base" "$base".*
}

until port=$(ls /dev/vport*p1 2>/dev/null); do
  sleep 0.05
done
exec 3<>"$port"
# One empty line in a pipe: who took it may answer.
mkfifo /run/turn
exec 4<>/run/turn
echo >&4
echo ready >&3
while read -r verb number script <&3; do
  case $verb in
    run) run "$number" "$script" & ;;
    kill) kill -KILL -"$(cat "/run/scripts/$number.pid")" ;;
  esac
done
# Whoever started the guest is gone.
poweroff -f
