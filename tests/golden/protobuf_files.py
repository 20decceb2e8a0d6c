"""Files of Protobuf as text and as protoc 31.1 describes them: a witness for what reads and writes the text."""

from __future__ import annotations

PROTO3 = r"""// c
syntax = "proto3";
package com.shop.v1;
import "google/protobuf/timestamp.proto";
/* block
*/
option java_package = "com.x";
option java_multiple_files = true;
message Order {
  reserved 15, 20 to 30;
  reserved "foo", "bar";
  enum Kind { option allow_alias = true; A = 0; B = 1; C = 1 [deprecated = true]; NEG = -5; reserved 9 to max; }
  message Line { string article = 1; int64 quantity = 2; Order back = 3; Line again = 4;}
  string id = 1;
  optional .google.protobuf.Timestamp at_time = 0x02 [json_name = "when"];
  map<string, Line> line_by_id = 3;
  oneof what { string a = 5; Line b = 6; }
  repeated Line lines = 7;
  Kind kind = 8;
  optional int32 opt2 = 9;
  repeated int32 nums = 10 [packed = false];
  map<int32, Other> m2 = 11;
  .com.shop.v1.Other o = 12;
}
message Other { message com { int32 a = 1; } com c = 1; Order.Line l = 2;
  .google.protobuf.Timestamp t3 = 3; Order o = 4; }
enum Top { ZERO = 0; }
message google { int32 a = 1; .google.protobuf.Timestamp t = 2; google g = 3;}
service S { rpc X(Order) returns (Other) ; rpc Y(stream Order) returns (Other); }
"""
PROTO3_BY_PROTOC = (
    "CgpzaG9wLnByb3RvEgtjb20uc2hvcC52MRofZ29vZ2xlL3Byb3RvYnVmL3RpbWVzdGFtcC5wcm90byLOBgoFT3JkZXISDgoCaWQY"
    "ASABKAlSAmlkEjYKB2F0X3RpbWUYAiABKAsyGi5nb29nbGUucHJvdG9idWYuVGltZXN0YW1wSAFSBHdoZW6IAQESPgoKbGluZV9i"
    "eV9pZBgDIAMoCzIgLmNvbS5zaG9wLnYxLk9yZGVyLkxpbmVCeUlkRW50cnlSCGxpbmVCeUlkEg4KAWEYBSABKAlIAFIBYRInCgFi"
    "GAYgASgLMhcuY29tLnNob3AudjEuT3JkZXIuTGluZUgAUgFiEi0KBWxpbmVzGAcgAygLMhcuY29tLnNob3AudjEuT3JkZXIuTGlu"
    "ZVIFbGluZXMSKwoEa2luZBgIIAEoDjIXLmNvbS5zaG9wLnYxLk9yZGVyLktpbmRSBGtpbmQSFwoEb3B0MhgJIAEoBUgCUgRvcHQy"
    "iAEBEhYKBG51bXMYCiADKAVCAhAAUgRudW1zEioKAm0yGAsgAygLMhouY29tLnNob3AudjEuT3JkZXIuTTJFbnRyeVICbTISIAoB"
    "bxgMIAEoCzISLmNvbS5zaG9wLnYxLk90aGVyUgFvGpMBCgRMaW5lEhgKB2FydGljbGUYASABKAlSB2FydGljbGUSGgoIcXVhbnRp"
    "dHkYAiABKANSCHF1YW50aXR5EiYKBGJhY2sYAyABKAsyEi5jb20uc2hvcC52MS5PcmRlclIEYmFjaxItCgVhZ2FpbhgEIAEoCzIX"
    "LmNvbS5zaG9wLnYxLk9yZGVyLkxpbmVSBWFnYWluGlQKDUxpbmVCeUlkRW50cnkSEAoDa2V5GAEgASgJUgNrZXkSLQoFdmFsdWUY"
    "AiABKAsyFy5jb20uc2hvcC52MS5PcmRlci5MaW5lUgV2YWx1ZToCOAEaSQoHTTJFbnRyeRIQCgNrZXkYASABKAVSA2tleRIoCgV2"
    "YWx1ZRgCIAEoCzISLmNvbS5zaG9wLnYxLk90aGVyUgV2YWx1ZToCOAEiPwoES2luZBIFCgFBEAASBQoBQhABEgkKAUMQARoCCAES"
    "EAoDTkVHEPv//////////wEaAhABIggICRD/////B0IGCgR3aGF0QgoKCF9hdF90aW1lQgcKBV9vcHQySgQIDxAQSgQIFBAfUgNm"
    "b29SA2JhciK3AQoFT3RoZXISJAoBYxgBIAEoCzIWLmNvbS5zaG9wLnYxLk90aGVyLmNvbVIBYxIlCgFsGAIgASgLMhcuY29tLnNo"
    "b3AudjEuT3JkZXIuTGluZVIBbBIqCgJ0MxgDIAEoCzIaLmdvb2dsZS5wcm90b2J1Zi5UaW1lc3RhbXBSAnQzEiAKAW8YBCABKAsy"
    "Ei5jb20uc2hvcC52MS5PcmRlclIBbxoTCgNjb20SDAoBYRgBIAEoBVIBYSJjCgZnb29nbGUSDAoBYRgBIAEoBVIBYRIoCgF0GAIg"
    "ASgLMhouZ29vZ2xlLnByb3RvYnVmLlRpbWVzdGFtcFIBdBIhCgFnGAMgASgLMhMuY29tLnNob3AudjEuZ29vZ2xlUgFnKg8KA1Rv"
    "cBIICgRaRVJPEAAyXwoBUxIrCgFYEhIuY29tLnNob3AudjEuT3JkZXIaEi5jb20uc2hvcC52MS5PdGhlchItCgFZEhIuY29tLnNo"
    "b3AudjEuT3JkZXIaEi5jb20uc2hvcC52MS5PdGhlcigBQgkKBWNvbS54UAFiBnByb3RvMw=="
)

PROTO2 = r"""syntax = "proto2";
message A { required int32 a = 1 [default = 5];
  optional string b = 2 [default = "h\"i\n"];
  optional bytes c = 3 [default = "\001x"];
  optional E e = 4 [default = Y];
  optional double d = 5 [default = inf];
  repeated int32 p = 6 [packed = true];
  oneof x { int32 q = 7; }
 reserved 100 to max; }
enum E { X = 1; Y = 2; }
"""
PROTO2_BY_PROTOC = (
    "CgpzaG9wLnByb3RvIpYBCgFBEg8KAWEYASACKAU6ATVSAWESEgoBYhgCIAEoCToEaCJpClIBYhITCgFjGAMgASgMOgVcMDAxeFIB"
    "YxITCgFlGAQgASgOMgIuRToBWVIBZRIRCgFkGAUgASgBOgNpbmZSAWQSEAoBcBgGIAMoBUICEAFSAXASDgoBcRgHIAEoBUgAUgFx"
    "QgMKAXhKCAhkEICAgIACKhEKAUUSBQoBWBABEgUKAVkQAg=="
)
