from harness.java_client import *
def test_x(java_client, topic):
    consumer = java_client.subscribe(topic, "s", schema={"AVRO": "User"})
    producer = java_client.create_producer(topic, schema={"AVRO": "User"})
    producer.send({"name": "Ada", "age": 36}, key="k")
    m = consumer.receive()
    assert m.value == {"name": "Ada", "age": 36}
    assert m.key == "k" and m.schema_version == 0, vars(m)
