"""`TF_CONFIG` and the connection between the ranks, without TensorFlow."""

import contextlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import stamina

import tfbench.peers as module
from results.schema import Status
from tests.support.engines import processes
from tests.support.patience import patience
from tfbench.failures import CaseFailedError, outcome_of
from tfbench.flags import FlagsError, parse
from tfbench.peers import ClusterError, Peers, TFCluster, may_be_a_peers, read_cluster

pytestmark = pytest.mark.slow  # starts programs and waits for them

TWO = ["10.0.0.11:29500", "10.0.0.12:29500"]


def config(workers=TWO, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": kind, "index": index}})}


def test_a_cluster_is_read_from_tf_config():
    cluster = read_cluster(2, config(index=1))
    assert (cluster.addresses, cluster.rank) == (tuple(TWO), 1)
    assert cluster.control == ("10.0.0.11", 29501)
    assert cluster.name(1) == "rank 1 (10.0.0.12:29500)"
    assert read_cluster(2, config(["[fd00::1]:1", "[fd00::2]:1"])).control == ("fd00::1", 2)
    assert read_cluster(1, {}) == read_cluster(1, config(TWO[:1])) == TFCluster(), "one host needs none"


@pytest.mark.parametrize(
    ("num_hosts", "environment", "said"),
    [
        (2, {}, "needs the environment variable TF_CONFIG"),
        (2, {"TF_CONFIG": "{"}, "is not a JSON object"),
        (2, {"TF_CONFIG": '{"cluster": 7}'}, "is not a JSON object"),
        (3, config(), "must list as many addresses as --num_hosts=3, all under 'worker'"),
        (2, config(["a", "b:1"]), "'a' is not host:port"),
        (2, config(["a:65535", "b:1"]), "'a:65535' is not host:port with a port of 1 to 65534"),
        (2, config(["fd00::1:5", "b:1"]), "'fd00::1:5' is not host:port"),
        (2, config(["a:1", "a:1"]), "an address appears twice"),
        (2, config(["a:1", "a:2"]), "a:2 is where the chief listens for the others"),
        (2, config(kind="ps"), "must be of type 'worker'"),
        (2, config(index=2), "with an index of 0 to 1"),
    ],
)
def test_a_wrong_cluster_is_refused_with_what_came_in_and_what_to_do(num_hosts, environment, said):
    with pytest.raises(ClusterError) as caught:
        read_cluster(num_hosts, environment)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("flag", "said"), [("--num_hosts=2", "TF_CONFIG"), ("--communication=ring", "several hosts")])
def test_flags_of_several_hosts_are_checked(monkeypatch, flag, said):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(FlagsError, match=said):
        parse(["--model=resnet50", flag])


class Ranks:
    """Ranks in threads of this process."""

    def __init__(self, count, closing, host="127.0.0.1"):
        chief = processes.free_port(2)
        self.addresses = tuple(f"{host}:{chief + 2 * rank if rank else chief}" for rank in range(count))
        self.lost = [threading.Event() for _ in range(count)]
        self.outcomes = [None] * count
        self.closing = closing
        self.peers = [self.rank(rank) for rank in range(count)]

    def rank(self, rank, case="case"):
        def on_loss(outcome):
            self.outcomes[rank] = outcome
            self.lost[rank].set()

        peers = Peers(TFCluster(addresses=self.addresses, rank=rank), case, on_loss)
        return self.closing.enter_context(contextlib.closing(peers))

    def together(self, work):
        """Call `work(peers)` for all ranks at once; return what each gave or raised."""

        def answer(peers):
            try:
                return work(peers)
            except CaseFailedError as error:
                peers.report_failure(outcome_of(error))
                return error

        with ThreadPoolExecutor(len(self.peers)) as threads:
            return list(threads.map(answer, self.peers))

    def connected(self):
        assert self.together(lambda peers: peers.connect(60)) == [None] * len(self.peers)
        assert self.together(lambda peers: peers.gather("begin", 0)) == [[0] * len(self.peers)] * len(self.peers)
        return self


@pytest.fixture
def multi(monkeypatch):
    """Make ranks, and take all of them apart in the end."""
    for name, seconds in {"SILENCE_SECONDS": 1.0, "BEAT_SECONDS": 0.1, "LAST_WORDS_SECONDS": 0.05}.items():
        monkeypatch.setattr(module, name, seconds)
    with contextlib.ExitStack() as closing:
        yield lambda count, host="127.0.0.1": Ranks(count, closing, host)


def test_every_rank_gets_what_all_ranks_gave_in_their_order(multi):
    ranks = multi(3).connected()
    for turn in range(5):
        answers = ranks.together(lambda peers, turn=turn: peers.gather("turn", {"of": peers.rank, "turn": turn}))
        assert answers == [[{"of": rank, "turn": turn} for rank in range(3)]] * 3
    assert ranks.together(lambda peers: peers.finish()) == [None] * 3
    ranks.peers[1].close()
    assert not ranks.lost[0].wait(0.5), "a rank that may leave is not missed"
    assert ranks.outcomes == [None] * 3
    assert Peers().gather("anything", 7) == [7]


def has_ipv6():
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.parametrize(
    ("host", "elsewhere"),
    [
        (socket.gethostname(), None),
        ("127.0.0.2", "127.0.0.1"),
        pytest.param("[::1]", "127.0.0.1", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")),
    ],
)
def test_the_chief_listens_on_its_own_address_only(multi, host, elsewhere):
    ranks = multi(2, host)
    address = ranks.peers[0].cluster.control
    waiting = threading.Thread(target=ranks.peers[0].connect, args=(60,))
    waiting.start()
    for attempt in stamina.retry_context(on=OSError, attempts=None, timeout=patience()):
        with attempt, socket.create_connection(address, timeout=patience()):
            pass
    if elsewhere is not None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((elsewhere, address[1]), timeout=patience())
    ranks.peers[1].connect(60)
    waiting.join(patience())


def test_an_address_that_the_network_translates_is_no_failure(multi, monkeypatch):
    ranks = multi(2, "192.0.2.1")  # nobody's
    to_chief = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda to, **more: to_chief(("127.0.0.1", to[1]), **more))
    ranks.connected()


def test_ranks_of_different_cases_refuse_each_other(multi):
    ranks = multi(2)
    ranks.peers[1] = ranks.rank(1, case="another")
    chief, other = ranks.together(lambda peers: peers.connect(60))
    assert (chief.status, other.status) == (Status.UNSUPPORTED, Status.UNSUPPORTED)
    assert "another" in str(chief) and "same flags" in str(other)


def test_a_rank_that_does_not_come_is_named(multi):
    ranks = multi(3)
    del ranks.peers[2]
    chief, _ = ranks.together(lambda peers: peers.connect(1.5))
    assert chief.status is Status.LOST and f"rank 2 ({ranks.addresses[2]})" in str(chief)
    assert ranks.lost[1].wait(patience())
    assert f"rank 2 ({ranks.addresses[2]})" in ranks.outcomes[1].cause


def test_strangers_at_the_chiefs_port_are_ignored(multi, monkeypatch):
    monkeypatch.setattr(module, "HELLO_SECONDS", 0.3)
    ranks = multi(2)
    reach = stamina.RetryingCaller(timeout=patience(), attempts=None).on(ConnectionRefusedError)

    def connect(peers):
        if peers.rank:
            for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"hello": 9}\n', b'{"hello": true}\n', b"[1]\n", b""):
                with reach(socket.create_connection, ranks.peers[0].cluster.control, timeout=1) as stranger:
                    stranger.sendall(said)
        peers.connect(60)

    assert ranks.together(connect) == [None] * 2
    assert ranks.together(lambda peers: peers.gather("still", peers.rank)) == [[0, 1]] * 2


def test_errors_that_may_come_from_a_lost_peer_are_known_from_others():
    class UnavailableError(Exception):
        pass

    assert may_be_a_peers(UnavailableError("recvmsg:Connection reset by peer"))
    assert may_be_a_peers(RuntimeError("Collective ops is aborted by: …"))
    assert may_be_a_peers(ConnectionResetError())
    assert not may_be_a_peers(MemoryError("out of memory"))
